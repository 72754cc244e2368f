// Sets the colours before anything is painted; "auto" follows the system.
const choice = localStorage.getItem("geminga-theme");
if (choice === "light" || choice === "dark") document.documentElement.dataset.theme = choice;
