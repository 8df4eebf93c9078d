/* SPDX-License-Identifier: Apache-2.0
 * Who acts: the clients (a training process each), time, and who kills and stops them. What a client does to its
 * segment stands in turns.pml.
 */
proctype Client(byte me)
{
    byte g = SEGMENT_OF(me);
    mtype what = ATTACH, op = DONE, then = DONE; /* of the transaction under way */
    byte leaver = NONE, ending = NONE, admit = NONE, next = NONE, first = NONE, reached = 0;
    bit by_lease = 0, new_round = 0;
    byte i = 0, j = 0, k = 0, h = 0, clients = 0, claims = 0, waiters = 0, wakes = 0;
    bit granted = 0, late = 0, faulted = 0;
    byte round = 0;
    byte die_at = 0, points = 0;

#ifdef ATTACHED
        goto crossing;
#endif
        do
        :: OUTSIDE;
           transact();
           if
           :: what == LEAVE -> break
#ifdef GIVE_UP
           :: faulted && what != LEAVE -> /* fault(), later rejoin(): ungated in between */
               atomic { faulted = 0; granted = 0; late = 0; g++; what = ATTACH } /* must: giving_up */
#endif
           :: what == EXPIRE && !granted && !late && !faulted ->
               /* futex_wait(): the kernel compares the word and queues the thread in one step */
               atomic { mine.asleep = !mine.changed };
               if
               :: !mine.asleep
               :: mine.asleep && TIME_OUT(g) -> mine.asleep = 0 /* must: leases deaths coming freezes tears gang */
#ifdef DEADLINES
               :: me == 2 && mine.asleep -> atomic { mine.asleep = 0; late = 1 }
#endif
               fi;
               if
#ifndef PEER /* there it asks under the lock, which comes to the same and is one step */
               :: !late ->
                   take_lockless();
                   if
                   :: granted -> goto work /* must: turns shared leases tears giving_up */
                   :: else
                   fi
#endif
               :: else
               fi
           :: what == EXPIRE && (granted || late) && !faulted ->
work:          skip;
               if
               :: granted -> compute()
               :: else -> late = 0 /* must: deadlines */ /* ungated */
               fi;
               what = RELEASE;
#ifdef PEER
               if
               :: true      /* a communication window */
               :: goto crossing /* must: gang */ /* one that is not known yet: the turn is kept */
               fi
#endif
           :: (what == ATTACH || what == RELEASE) && !faulted ->
crossing:      skip;
#ifdef PEER
               entered[PEER(me)] >= entered[me]; /* the collective's end */
#endif
#ifdef ROUNDS
               if
               :: round == ROUNDS -> what = LEAVE
               :: else -> round++; what = EXPIRE
               fi;
#else
               what = EXPIRE;
#endif
#ifdef PEER
               if
               :: what == EXPIRE && mine.held -> granted = 1; goto work /* must: long_gang */
               :: else
               fi
#endif
           fi
        od;
        goto finished;
died: /* what the kernel does: one lock after the other, the last one taken first */
        atomic {
            mine.computes = 0;
            mine.asleep = 0;
            if
            :: s[g].owner == me + 1 -> s[g].owner_died = 1; s[g].owner = 0 /* must: deaths coming */
            :: else
            fi
        }
        mine.life = 0; /* must: deaths coming */
finished:
        ready[me] = 1
}

#ifdef LEASE
/* Time: a lease that runs may run out. */
proctype Clock(byte g)
{
end:
    do
    :: atomic {
        s[g].holder != 0 && s[g].leased[s[g].holder - 1] && !s[g].ran_out[s[g].holder - 1] ->
        s[g].ran_out[s[g].holder - 1] = 1
    }
    od
}
#endif

#if STOPS > 0
#if CLIENTS == 3
#define others_ready(me) (ready[0] + ready[1] + ready[2] - ready[me] == 2)
#else
#define others_ready(me) (ready[0] + ready[1] - ready[me] == 1)
#endif
/* SIGCONT: at any time, or when all others are ready. */
proctype Continuer(byte who)
{
end:
    do
    :: atomic { frozen[who] == 1 || (frozen[who] == 2 && others_ready(who)) -> frozen[who] = 0 }
    od
}
#endif

init {
    byte c;
    atomic {
#if STOPS > 0
        for (c : 0 .. CLIENTS - 1) { run Continuer(c) }
#endif
#ifdef LEASE
        for (c : 0 .. SEGMENTS - 1) { run Clock(c) }
#endif
        for (c : 0 .. CLIENTS - 1) {
#ifdef ATTACHED
            s[SEGMENT_OF(c)].slot[SLOT(c)].attached = 1;
            s[SEGMENT_OF(c)].slot[SLOT(c)].life = 1;
#endif
            run Client(c)
        }
        c = 0
    }
}

#ifdef FOREVER
/* (4) and (5): who waits comes to its turn, or gives its wait up (DEADLINES). */
#define comes(k) (s[0].slot[k].waits -> <> !s[0].slot[k].waits)
ltl served { [] (comes(0) && comes(1) && comes(2)) }
#endif

#if CLIENTS == 4
#define all_ready (ready[0] && ready[1] && ready[2] && ready[3])
#elif CLIENTS == 3
#define all_ready (ready[0] && ready[1] && ready[2])
#else
#define all_ready (ready[0] && ready[1])
#endif

#ifdef ROUNDS
/* (3) and (4): everybody ends (the killed too), whoever began on which device and whoever died holding what. */
ltl ends { <> all_ready }
#endif
