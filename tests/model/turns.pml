/* SPDX-License-Identifier: Apache-2.0
 * The turn protocol of arbiter/ as a Spin model: segments, clients and what may befall them. Which function each part
 * stands for, and what is left out: README.md. Settings (who is there, what may happen) come from settings.pml by -D;
 * check.py runs them. No C code in here, nothing that the arbiter does not do.
 */
#include "settings.pml"

#define NONE 255
mtype = { DONE, REPAIR, ATTACH, EXPIRE, REQUEST, WITHDRAW, RELEASE, LEAVE, REAP }

/* What a client slot says, and two things that stand beside it in the code: the client's remembered turn word
 * (`held`: it equals the segment's) and the kernel's queue of the grant word (`asleep`). */
typedef Slot {
    bit attached;
    bit claims;
    bit waits;
    bit changed;  /* grant word: advanced since this client read it under the lock */
    bit asleep;   /* futex: queued on the grant word */
    bit held;     /* held_ == turn.word */
    bit gave;     /* released_turn == number of the turn */
    bit past;     /* held_ has that number and no job: given back, or over */
    bit life;     /* the life lock is held */
    bit computes; /* ghost: submits compute */
    bit cut       /* ghost: its turn was ended from outside: by its lease, or with the segment */
}

typedef Segment {
    byte owner;     /* lock: client + 1 */
    bit owner_died; /* lock: robust, not marked consistent since */
    bit given_up;   /* header.end == kGivenUp */
    byte holder;    /* turn.word, low bits: job + 1 */
    byte waiting_jobs;
    bit had[JOBS];     /* last_round == round */
    bit leased[JOBS];  /* lease_from_ns != 0 */
    bit ran_out[JOBS]; /* time: the lease has run out */
    byte passed[JOBS]; /* ghost: jobs that have begun a turn since this one began to wait */
    Slot slot[SLOTS]
}

Segment s[SEGMENTS];
byte frozen[CLIENTS];  /* between SIGSTOP and SIGCONT: 1; 2 if that waits until all others are ready */
byte kills = KILLS;    /* how many clients may still be killed */
byte stops = STOPS;    /* how many may still be stopped */
byte entered[CLIENTS]; /* collectives entered */
bit ready[CLIENTS];     /* ghost: has done all it wanted */

#define mine s[g].slot[SLOT(me)]
#define my_job JOB_OF(SLOT(me))

/* ---- state.cpp ---------------------------------------------------------------------------------------------------*/

/* Counts of job j's clients, claims and waiters. */
inline tally(j) {
    clients = 0; claims = 0; waiters = 0;
    for (k : 0 .. SLOTS - 1) {
        if
        :: s[g].slot[k].attached && JOB_OF(k) == j ->
            clients++;
            claims = claims + s[g].slot[k].claims;
            waiters = waiters + s[g].slot[k].waits
        :: else
        fi
    }
    k = 0
}
#define forget_tally clients = 0; claims = 0; waiters = 0
#define tallied_job_waits(j) (s[g].holder != (j) + 1 && waiters > 0)

/* A store to turn.word: whoever remembers another one does not hold. The number grows with a grant. */
inline set_word(who) {
    ONE_STEP {
        s[g].holder = who;
        for (k : 0 .. SLOTS - 1) {
            s[g].slot[k].held = 0;
            s[g].slot[k].gave = s[g].slot[k].gave && who == 0;
            s[g].slot[k].past = s[g].slot[k].past && who == 0
        }
        k = 0
    }
}

/* Transition::recount(), in steps that only derive. The last one finds a turn that nobody uses. */
inline recount() {
    ONE_STEP {
        for (k : 0 .. SLOTS - 1) {
            if
            :: s[g].slot[k].attached && s[g].holder != JOB_OF(k) + 1 -> s[g].slot[k].claims = 0
            :: s[g].slot[k].attached && s[g].holder == JOB_OF(k) + 1 && s[g].slot[k].claims ->
                s[g].slot[k].waits = 0
            :: else
            fi
        }
        k = 0
    }
    POINT;
    ONE_STEP {
        for (j : 0 .. JOBS - 1) {
            tally(j);
            if
            :: clients == 0 ->
                s[g].had[j] = 0; s[g].leased[j] = 0; s[g].ran_out[j] = 0;
                if
                :: s[g].holder == j + 1 ->
                    s[g].holder = 0;
                    for (k : 0 .. SLOTS - 1) { s[g].slot[k].held = 0 }
                    k = 0
                :: else
                fi
            :: clients != 0 && s[g].holder != j + 1 -> s[g].leased[j] = 0; s[g].ran_out[j] = 0
            :: else
            fi
        }
        j = 0; forget_tally
    }
    POINT;
    ONE_STEP {
        s[g].waiting_jobs = 0;
        for (j : 0 .. JOBS - 1) {
            tally(j);
            if
            :: tallied_job_waits(j) -> s[g].waiting_jobs++
            :: else -> s[g].passed[j] = 0 /* ghost: waits no more */
            fi;
            if
            :: clients == 0 -> /* ghost: a job that comes later is another one */
                for (k : 0 .. JOBS - 1) { s[g].passed[k] = s[g].passed[k] & (255 - (1 << j)) }
                k = 0
            :: clients != 0 && s[g].holder == j + 1 && claims == 0 -> ending = j
            :: else
            fi
        }
        j = 0; forget_tally
    }
    POINT
}

/* Transition::end_turn() */
inline end_turn() {
    s[g].leased[ending] = 0;
    s[g].ran_out[ending] = 0;
    POINT;
    for (i : 0 .. SLOTS - 1) {
        if
        :: s[g].slot[i].attached && JOB_OF(i) == ending && s[g].slot[i].claims ->
            s[g].slot[i].claims = 0;
            s[g].slot[i].cut = by_lease;
            POINT
        :: else
        fi
    }
    i = 0;
    set_word(0);
    POINT;
    ending = NONE; by_lease = 0
}

/* policy.cpp: next_grant(). Keys are the jobs' numbers. */
inline next_grant() {
    ONE_STEP {
        next = NONE; first = NONE;
        for (j : 0 .. JOBS - 1) {
            if
            :: s[g].had[j] -> reached = j
            :: else
            fi
        }
        for (j : 0 .. JOBS - 1) {
            tally(j);
            if
            :: tallied_job_waits(j) && first == NONE -> first = j
            :: else
            fi;
            if
            :: tallied_job_waits(j) && next == NONE && j >= reached && !s[g].had[j] -> next = j
            :: else
            fi
        }
        new_round = (next == NONE && first != NONE);
        if
        :: new_round -> next = first
        :: else
        fi;
        j = 0; reached = 0; first = NONE; forget_tally
    }
}

/* (2) No waiting job is passed by another one twice. */
inline count_passing() {
    for (j : 0 .. JOBS - 1) {
        tally(j);
        if
        :: j != next && waiters > 0 ->
            assert((s[g].passed[j] & (1 << next)) == 0);
            s[g].passed[j] = s[g].passed[j] | (1 << next)
        :: else
        fi
    }
    s[g].passed[next] = 0;
    j = 0; forget_tally
}

/* Transition::settle(): each turn of the loop is what the code does up to its next recount(). */
inline settle() {
    do
    :: if
       :: ending != NONE -> end_turn()
       :: else
       fi;
       recount();
       h = s[g].holder;
       if
       :: ending != NONE /* settle(): nobody uses the turn */
       :: ending == NONE && h == 0 -> /* grant_next() */
           next_grant();
           if
           :: next == NONE -> break
           :: else
           fi;
           if
           :: new_round ->
               for (j : 0 .. JOBS - 1) { s[g].had[j] = 0 }
               j = 0; new_round = 0;
               POINT
           :: else
           fi;
           s[g].had[next] = 1;
           POINT;
           s[g].waiting_jobs--; /* for those who take the turn without the lock */
           POINT;
           ONE_STEP { count_passing() };
           admit = next; next = NONE;
           set_word(admit + 1);
           POINT
       :: ending == NONE && h != 0 && s[g].waiting_jobs != 0 -> /* lease() */
           ONE_STEP {
               if
               :: !s[g].leased[h - 1] -> s[g].leased[h - 1] = 1
               :: else
               fi
           }
           break
       :: ending == NONE && h != 0 && s[g].waiting_jobs == 0 ->
           ONE_STEP {
               s[g].leased[h - 1] = 0; s[g].ran_out[h - 1] = 0;
               tally(h - 1);
               if
               :: waiters > 0 -> admit = h - 1
               :: else
               fi;
               forget_tally
           }
           if
           :: admit == NONE -> break
           :: else
           fi
       fi;
       if
       :: admit != NONE -> /* admit_waiters(), grant_to() */
           for (i : 0 .. SLOTS - 1) {
               if
               :: s[g].slot[i].attached && JOB_OF(i) == admit && s[g].slot[i].waits ->
                   s[g].slot[i].claims = 1;
                   s[g].slot[i].cut = 0;
                   POINT;
                   s[g].slot[i].waits = 0;
                   POINT;
                   s[g].slot[i].changed = 1;
                   wakes = wakes | (1 << i);
                   POINT
               :: else
               fi
           }
           i = 0; admit = NONE
       :: else
       fi
    od;
    h = 0
}

/* The part of each transition that comes before it settles: it changes what is true of one client or of the turn. */
inline change_truth() {
    if
    :: op == REPAIR
    :: op == ATTACH ->
        mine.life = 1;
        POINT;
        ONE_STEP { mine.claims = 0; mine.waits = 0; mine.gave = 0; mine.past = 0; mine.held = 0; mine.cut = 0 }
        POINT;
        mine.attached = 1
    :: op == EXPIRE ->
        ONE_STEP {
            if
            :: lease_is_over(g) -> ending = s[g].holder - 1; by_lease = 1
            :: else
            fi
        }
    :: op == REQUEST ->
        if
        :: s[g].holder == my_job + 1 && !mine.claims && !(s[g].waiting_jobs != 0 && mine.gave) ->
            mine.claims = 1;
            mine.cut = 0;
            POINT;
            mine.waits = 0
        :: s[g].holder == my_job + 1 && mine.claims
        :: else -> mine.waits = 1
        fi
    :: op == WITHDRAW -> mine.waits = 0
    :: op == RELEASE ->
        if
        :: mine.held -> mine.claims = 0; POINT; mine.gave = 1; POINT; mine.held = 0; mine.past = LOCKLESS
        :: else /* the turn was over before */
        fi
    :: op == LEAVE || op == REAP -> /* leave(), for detach_client() and reap_client() */
        leaver = (op == LEAVE -> SLOT(me) : leaver);
        s[g].slot[leaver].attached = 0;
        POINT;
        s[g].slot[leaver].claims = 0;
        POINT;
        s[g].slot[leaver].waits = 0;
        POINT;
        ONE_STEP {
            tally(JOB_OF(leaver));
            if
            :: s[g].holder == JOB_OF(leaver) + 1 && claims == 0 -> ending = JOB_OF(leaver)
            :: else
            fi;
            leaver = NONE;
            forget_tally
        }
    fi
}

/* repair(), after it has settled: every client looks anew. */
inline look_anew() {
    ONE_STEP {
        if
        :: s[g].holder != 0 -> s[g].had[s[g].holder - 1] = 1
        :: else
        fi
    };
    for (i : 0 .. SLOTS - 1) {
        if
        :: s[g].slot[i].attached -> s[g].slot[i].changed = 1; wakes = wakes | (1 << i); POINT
        :: else
        fi
    }
    i = 0
}

/* ---- liveness.cpp ------------------------------------------------------------------------------------------------*/

/* The first client that is found dead, of job `job` - 1 or (0) of any. */
inline find_dead(job) {
    ONE_STEP {
        leaver = NONE;
        for (k : 0 .. SLOTS - 1) {
            if
            :: leaver == NONE && k != SLOT(me) && s[g].slot[k].attached && !s[g].slot[k].life &&
                (job == 0 || JOB_OF(k) + 1 == job) -> leaver = k
            :: else
            fi
        }
        k = 0
    }
}

/* ---- client.cpp, transaction.cpp ---------------------------------------------------------------------------------*/

/* What follows a transition in the same transaction. */
inline go_on() {
    if
    :: op == REPAIR ->
        look_anew();
        s[g].owner_died = 0; /* mark_consistent() */
        POINT;
        find_dead(0);
        op = (leaver != NONE -> REAP : what);
        then = what
    :: op == REAP ->
        find_dead(0);
        op = (leaver != NONE -> REAP : then)
    :: op == EXPIRE -> op = REQUEST
    :: op == REQUEST ->
        op = DONE; then = DONE;
        if
        :: !mine.claims && s[g].holder != 0 -> /* reap_dead_holders(), then reap_dead_clients() */
            find_dead(s[g].holder);
            op = (leaver != NONE -> REAP : DONE)
        :: else
        fi
    :: op == LEAVE -> POINT; mine.life = 0; op = DONE
    :: op == ATTACH || op == RELEASE || op == WITHDRAW -> op = DONE
    fi
}

/* Between two transactions: a turn is used, and nobody waits for a turn that is free or for one of its own job that
 * nobody else wants. */
inline check_invariants() {
    ONE_STEP {
        if
        :: faulted || s[g].given_up
        :: else ->
            for (k : 0 .. SLOTS - 1) {
                if
                :: s[g].slot[k].attached ->
                    assert(!(s[g].slot[k].claims && s[g].slot[k].waits));
                    assert(!s[g].slot[k].claims || s[g].holder == JOB_OF(k) + 1);
                    assert(!s[g].slot[k].waits || (s[g].holder != 0 && s[g].waiting_jobs != 0));
                    claims = claims + s[g].slot[k].claims
                :: else
                fi
            }
            assert(s[g].holder == 0 || claims > 0);
            k = 0; claims = 0
        fi
    }
}

/* Transaction::finish(): wakes once the lock is given back. */
inline wake_up() {
    for (k : 0 .. SLOTS - 1) {
        s[g].slot[k].asleep = s[g].slot[k].asleep && !(wakes & (1 << k))
    }
    k = 0; wakes = 0
}

/* One transaction. `what` is ATTACH, EXPIRE (a pass of the loop in acquire(): expire, request, look at the dead),
 * RELEASE or LEAVE. */
inline transact() {
    ATOMIC {
        take_lock();
        DRAW;
        WHOLE {
            op = (faulted -> DONE : (s[g].owner_died -> REPAIR : what));
            do
            :: op != DONE ->
                POINT;
                change_truth();
                POINT;
                settle();
                go_on()
            :: op == DONE && !faulted && what == EXPIRE && late && mine.waits -> op = WITHDRAW
            :: else -> break
            od;
            then = DONE;
            if
            :: !faulted && what == EXPIRE && mine.claims -> mine.held = 1; POINT; TAKE
            :: !faulted && what == EXPIRE && !mine.claims -> mine.changed = 0 /* grant = mine.grant */
            :: else
            fi;
            check_invariants();
            POINT;
            if
            :: !faulted ->
                assert(!s[g].owner_died); /* given back so, the lock would be nobody's any more */
                s[g].owner = 0
            :: else
            fi;
#ifdef PEER
            wake_up(); /* at once: what can happen before it stands in the other settings */
#endif
            die_at = 0;
            goto unlocked;
cut_short:
            assert(die_at < MOST_POINTS);
            kills--;
unlocked:
            points = 0
        }
    }
    if
    :: die_at != 0 -> goto died
    :: else
    fi;
    OUTSIDE;
    if
    :: wakes != 0 -> d_step { wake_up() }
    :: else
    fi
#ifdef GIVE_UP
    ;
    faulted = faulted || s[g].given_up
#endif
}

/* take_lockless(): what has come while this client slept, read without the lock; the word twice. */
inline take_lockless() {
    d_step { mine.held = (s[g].holder == my_job + 1 && !mine.past) };
    if
    :: mine.held && mine.claims && mine.attached -> skip; TAKE
    :: else -> mine.held = 0
    fi
}

/* What the turn is for. (1) Nobody of another job computes, leases that ran out apart. */
inline compute() {
    atomic {
        for (i : 0 .. SEGMENTS - 1) {
            for (k : 0 .. SLOTS - 1) {
                if
                :: SAME_DEVICE(g, i) && JOB_OF(k) != my_job && s[i].slot[k].computes ->
                    assert(s[i].slot[k].cut || mine.cut)
                :: else
                fi
            }
        }
        i = 0; k = 0;
        mine.computes = 1
    }
    OUTSIDE;
    d_step {
        mine.computes = 0; mine.cut = 0; granted = 0;
#ifdef PEER
        entered[me]++ /* the collective is submitted */
#endif
    }
}

#include "processes.pml"
