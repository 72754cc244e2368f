import pytest
from geminga.proto import pulsar_api_pb2 as api
from .peer import *
from ..harness import unique_topic, Broker
from ..proto.client_frames import send, entry_of, message_metadata
BIG=2**64-1
def test_explore(broker, subtests=None):
    u=broker.service_url
    def check(name, f):
        before=broker.children()
        try:
            with Peer(u) as p:
                try: r=f(p)
                except Exception as e: r=repr(e)
                try: r2=p.ask(T.PING).type
                except Exception as e: r2=repr(e)
        except Exception as e: r,r2="conn "+repr(e),0
        after=broker.children()
        print(name, "|", str(r).replace("\n"," ")[:150], r2, "" if before==after else "DIED %s %s"%(before,after), flush=True)
    t=unique_topic()
    sub=dict(subscription="s",subType=0,request_id=BIG)
    check("epoch", lambda p:p.ask(T.PRODUCER,topic=unique_topic(),producer_id=BIG,request_id=BIG,epoch=BIG))
    for e in (2**63-1,2**63,BIG):
        check("topic epoch", lambda p:p.ask(T.PRODUCER,topic=unique_topic(),producer_id=1,request_id=1,topic_epoch=e,producer_access_mode=api.Exclusive))
        check("fencing", lambda p:p.ask(T.PRODUCER,topic=unique_topic(),producer_id=1,request_id=1,topic_epoch=e,producer_access_mode=api.ExclusiveWithFencing))
    check("rollback", lambda p:p.ask(T.SUBSCRIBE,topic=unique_topic(),consumer_id=BIG,start_message_rollback_duration_sec=BIG,**sub))
    for l in (0,1,2**63-1,2**63,BIG-1,BIG):
        for en in (0,2**63-1,2**63,BIG-1,BIG):
            check(f"start {l} {en}", lambda p:p.ask(T.SUBSCRIBE,topic=t,consumer_id=1,start_message_id=api.MessageIdData(ledgerId=l,entryId=en) and dict(ledgerId=l,entryId=en),**(sub|dict(subscription="s%d%d"%(l,en)))))
    with Peer(u) as q:
        q.open_producer(t)
        for i in range(5): q.say(send(sequence_id=i)); print(q.hear().send_receipt)
        q.say(send(entry_of(message_metadata(publish_time=BIG, deliver_at_time=-2**63, num_messages_in_batch=2**31-1)),sequence_id=BIG, highest_sequence_id=BIG)); print(q.hear())
        q.say(send(entry_of(message_metadata(publish_time=2**63, num_messages_in_batch=-2**31)),sequence_id=BIG, num_messages=-5)); print(q.hear())
        def seek(p,**k):
            p.subscribe(t,"seek"); p.say(command(T.SEEK,consumer_id=1,request_id=2,**k)); return [p.hear().type, p.hear().type]
        for l in (0,1,2**63-1,2**63,BIG-1,BIG):
            for en in (0,2**63-1,2**63,BIG-1,BIG):
                check(f"seek {l} {en}", lambda p:seek(p,message_id=dict(ledgerId=l,entryId=en)))
        for tm in (0,2**63,BIG): check(f"seek time {tm}", lambda p:seek(p,message_publish_time=tm))
        def ack(p,kind,l,en,**k):
            p.subscribe(t,"ack"); p.say(command(T.FLOW,consumer_id=1,messagePermits=2**32-1)); ids=[api.MessageIdData(ledgerId=l,entryId=en,**k)]
            r=p.hear().message.message_id
            if l is None: ids[0].ledgerId=r.ledgerId
            p.say(command(T.ACK,consumer_id=1,ack_type=kind,message_id=ids,request_id=BIG))
            n=0
            while True:
                a=p.hear(); n+=1
                if a.type!=T.MESSAGE: return n,a.type
        for kind in (0,1):
            for l in (1,2**63,BIG,None):
                for en in (2**63-1,2**63,BIG-1,BIG):
                    for k in ({},dict(ack_set=[5]),dict(batch_index=2**31-1,batch_size=-1,partition=-5)):
                        check(f"ack {kind} {l} {en} {k}", lambda p:ack(p,kind,l or 0,en,**k) if l is not None else ack(p,kind,None,en,**k))
    check("long", lambda p:p.ask(T.PRODUCER,topic="x"*5_000_000,producer_id=1,request_id=1))
    check("long sub", lambda p:p.ask(T.SUBSCRIBE,topic=t,consumer_id=1,**(sub|dict(subscription="x"*5_000_000))))
    check("nul sub", lambda p:p.ask(T.SUBSCRIBE,topic=t,consumer_id=1,**(sub|dict(subscription="x\0y"))))
    check("slash sub", lambda p:p.ask(T.SUBSCRIBE,topic=t,consumer_id=1,**(sub|dict(subscription="../../x"))))
    check("long name", lambda p:p.ask(T.PRODUCER,topic=t,producer_id=1,request_id=1,producer_name="n"*5_000_000).type)
    check("nul topic", lambda p:p.ask(T.PRODUCER,topic="a\0b",producer_id=1,request_id=1))
    check("init sub", lambda p:p.ask(T.PRODUCER,topic=t,producer_id=1,request_id=1,initial_subscription_name="pulsar.repl.x"))
    check("lookup", lambda p:p.ask(T.LOOKUP,topic="a\nb/c",request_id=BIG))
    check("ns", lambda p:p.ask(T.GET_TOPICS_OF_NAMESPACE,namespace="a\nb/c",request_id=BIG))
    check("stats", lambda p:p.ask(T.CONSUMER_STATS,consumer_id=BIG,request_id=BIG))
    check("dup", lambda p:(p.ask(T.PRODUCER,topic=t,producer_id=1,request_id=1).type,p.ask(T.PRODUCER,topic=unique_topic(),producer_id=1,request_id=1)))
    def twice(p):
        p.say(command(T.PRODUCER,topic=t,producer_id=1,request_id=1)*3); return [p.hear().type for _ in range(3)]
    check("dup3", twice)
    def subthree(p):
        p.say(command(T.SUBSCRIBE,topic=t,consumer_id=1,**(sub|dict(subscription="s3")))*3); return [p.hear().type for _ in range(3)]
    check("sub3", subthree)
    print(broker.log()[-6000:])
