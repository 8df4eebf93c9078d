/* SPDX-License-Identifier: Apache-2.0
 * Who is there and what may happen, by the setting's name (-DTURNS and so on; README.md says what each is for). Slots
 * are a segment's, clients are the model's: the clients of one segment have its slots in order. No behaviour here.
 */
#if defined(TURNS)
/* Three jobs on one device, for ever, and nothing goes wrong. */
#define CLIENTS 3
#define JOBS 3
#define SLOTS 3
#define JOB_OF(slot) (slot)
#define FOREVER

#elif defined(SHARED)
/* Two clients of a job and one of another, for ever; with -DDEADLINES the other one may give its wait up. */
#define CLIENTS 3
#define JOBS 2
#define SLOTS 3
#define JOB_OF(slot) ((slot) / 2)
#define FOREVER

#elif defined(LEASES)
/* As before, and any turn that another job waits for may be ended by its lease. */
#define CLIENTS 3
#define JOBS 2
#define SLOTS 3
#define JOB_OF(slot) ((slot) / 2)
#define FOREVER
#define LEASE

#elif defined(DEATHS)
/* Clients are killed anywhere, also half way through a transition. */
#define CLIENTS 3
#define JOBS 2
#define SLOTS 3
#define JOB_OF(slot) ((slot) / 2)
#define ROUNDS 1
#define ATTACHED
#ifndef KILLS
#define KILLS 1
#endif

#elif defined(COMING)
/* The same while they come and go. */
#define CLIENTS 2
#define JOBS 2
#define SLOTS 2
#define JOB_OF(slot) (slot)
#define ROUNDS 1
#ifndef KILLS
#define KILLS 1
#endif

#elif defined(FREEZES)
/* A client is stopped anywhere but inside the lock, for as long as anybody else runs if need be. */
#define CLIENTS 3
#define JOBS 2
#define SLOTS 3
#define JOB_OF(slot) ((slot) / 2)
#define ROUNDS 1
#define LEASE
#define STOPS 1
#define ATTACHED

#elif defined(TEARS)
/* Every write under the lock is a step, for those who read without it; leases run out. */
#define CLIENTS 2
#define JOBS 2
#define SLOTS 2
#define JOB_OF(slot) (slot)
#define ROUNDS 2
#define TORN
#define LEASE
#define ATTACHED

#elif defined(GIVING_UP)
/* A client is stopped inside the lock; the others give the segment up and go on in another one. */
#define CLIENTS 2
#define JOBS 2
#define SEGMENTS 2
#define SLOTS 2
#define JOB_OF(slot) (slot)
#define ROUNDS (2 - me) /* the one that is stopped has one round */
#define TORN
#define STOPS 1
#define STOPPABLE (me == 1)
#define GIVE_UP
#define ATTACHED

#elif defined(GANG)
/* Two jobs of two ranks on two devices: collectives, windows that are used and windows that are not. */
#define CLIENTS 4
#define JOBS 2
#define SEGMENTS 2
#define SLOTS 2
#define SLOT(client) ((client) / 2)
#define SEGMENT_OF(client) ((client) % 2)
#define PEER(client) ((client) ^ 1)
#define JOB_OF(slot) (slot)
#define LEASE
#define ATTACHED
#ifndef ROUNDS
#define ROUNDS 1
#endif
#endif

#ifndef SEGMENTS
#define SEGMENTS 1
#endif
#ifndef SLOT
#define SLOT(client) (client)
#define SEGMENT_OF(client) 0
#endif

/* A transaction is one step, as others see single words of it only; but in TORN settings every write is one. At each
 * POINT in it a client may be killed (or stopped, where TORN), at each OUTSIDE, where it holds no lock, killed or
 * stopped. The point of death is drawn before the transaction begins. */
#ifndef KILLS
#define KILLS 0
#endif
#ifndef STOPS
#define STOPS 0
#endif
#ifndef STOPPABLE
#define STOPPABLE true
#endif
#define MOST_POINTS 70
#define ATOMIC atomic
#define WHOLE d_step
#define ONE_STEP
#define POINT skip
#define OUTSIDE skip
#define DRAW skip
#if KILLS > 0
#undef DRAW
#undef POINT
#undef OUTSIDE
#define DRAW if :: kills > 0 -> select(die_at : 1 .. MOST_POINTS) :: true fi; skip
#define POINT points++; if :: points == die_at -> goto cut_short :: else fi
#define OUTSIDE if :: atomic { kills > 0 -> kills--; goto died } :: true fi
#elif defined(TORN)
#undef ATOMIC
#undef WHOLE
#undef POINT
#define ATOMIC
#define WHOLE
#undef ONE_STEP
#define ONE_STEP d_step
#define POINT if :: atomic { stops > 0 && STOPPABLE -> stops--; frozen[me] = 1 }; frozen[me] == 0 \
                 :: atomic { stops > 0 && STOPPABLE -> stops--; frozen[me] = 2 }; frozen[me] == 0 :: true fi
#elif STOPS > 0
#undef OUTSIDE
#define OUTSIDE if :: atomic { stops > 0 && STOPPABLE -> stops--; frozen[me] = 2 }; frozen[me] == 0 :: true fi
#endif

/* Whether a client that slept first reads what has come without the lock: take_lockless(). */
#ifdef PEER
#define LOCKLESS 0
#else
#define LOCKLESS 1
#endif

/* take(), once the word and the claim were seen: both once more and the mark, in this order. */
#define NOT_TAKEN :: else -> mine.held = 0; mine.past = LOCKLESS fi
#ifdef GIVE_UP
#define TAKE if :: mine.held -> if :: mine.claims -> if :: !s[g].given_up -> granted = 1 \
             NOT_TAKEN NOT_TAKEN NOT_TAKEN
#define SAME_DEVICE(one, other) true
#else
#define TAKE if :: mine.held -> if :: mine.claims -> granted = 1 NOT_TAKEN NOT_TAKEN
#define SAME_DEVICE(one, other) (one == other)
#endif

#define lease_is_over(g) (s[g].holder != 0 && s[g].ran_out[s[g].holder - 1])
#define dead_in(g, k) (s[g].slot[k].attached && !s[g].slot[k].life)
#if SLOTS == 2
#define somebody_died(g) (dead_in(g, 0) || dead_in(g, 1) || s[g].owner_died)
#else
#define somebody_died(g) (dead_in(g, 0) || dead_in(g, 1) || dead_in(g, 2) || s[g].owner_died)
#endif

/* When a sleep ends by time: at the lease's end, and by the look of every 50 ms. Only a look that finds something
 * matters; it is left out where nothing may go wrong, so that a wake-up that is missing shows. */
#if KILLS > 0
#define TIME_OUT(g) (somebody_died(g) || mine.changed || lease_is_over(g))
#elif defined(GIVE_UP)
#define TIME_OUT(g) (s[g].owner != 0 && frozen[s[g].owner - 1])
#elif STOPS > 0
#define TIME_OUT(g) (mine.changed || lease_is_over(g))
#elif defined(LEASE)
#define TIME_OUT(g) lease_is_over(g)
#else
#define TIME_OUT(g) false
#endif

/* Transaction::Transaction(). The bound runs out only where the holder of the lock is stopped. */
#ifdef GIVE_UP
inline take_lock() {
    if
    :: atomic { s[g].owner == 0 -> s[g].owner = me + 1 };
        if
        :: s[g].given_up -> s[g].owner = 0; faulted = 1
        :: else
        fi
    :: s[g].given_up -> faulted = 1
    :: s[g].owner != 0 && frozen[s[g].owner - 1] -> faulted = 1; give_up()
    fi
}
/* transaction.cpp: give_up(). First the mark, then the word, then everybody is woken. */
inline give_up() {
    d_step {
        s[g].given_up = 1;
        for (k : 0 .. SLOTS - 1) { s[g].slot[k].cut = s[g].slot[k].cut || s[g].slot[k].claims }
        k = 0
    }
    set_word(0);
    d_step {
        for (k : 0 .. SLOTS - 1) { s[g].slot[k].changed = 1; s[g].slot[k].asleep = 0 }
        k = 0
    }
}
#else
inline take_lock() { atomic { s[g].owner == 0 -> s[g].owner = me + 1 } }
#endif
