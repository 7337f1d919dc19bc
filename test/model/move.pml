/*
 * move.pml: one live migration of one guest, as a state machine that spin can
 * search to the end. docs/model.md says in words what is here, names the place
 * in the code of every step, and tells how to run it.
 *
 * The guest is at the source S and is to go to the destination D. Everything
 * that is written down durably is one atomic step; an effect (on libvirt, on the
 * other host, in Placement) is another, and between any two the source's agent,
 * the destination's agent or a message may be lost. At most FAULTS things go
 * wrong in one run, of whatever kinds.
 *
 * The laws are in monitor(), at the end. Mutants are careless versions of single
 * steps, compiled in by -DM_NAME; look for `#ifdef M_`. ONLY=n leaves one law in.
 */
#ifndef FAULTS
#define FAULTS 2        /* crashes, lost, held or repeated messages, broken streams, dead daemons */
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 1      /* destinations tried, all on one host here: the harder case */
#endif

#define SAY printf      /* the words of a counterexample; costs no state */

/* The source's domain, as its libvirt tells it. */
#define RUNS   1        /* running, or paused by its user: it has its memory */
#define STOPS  2        /* paused (migrating): the switchover, its memory is still here */
#define LEFT   3        /* shut off (migrated) */
#define OFF    4        /* shut off, and libvirt has forgotten why */
#define NONE   0        /* no domain; also: no claim, no context, nothing */
/* The destination's copy. */
#define INCOMING 5      /* paused (migrating): not whole */
#define WHOLE    6      /* paused, complete */
/* A claim. */
#define PENDING  1
#define ARRIVING 2
#define BOUND    3
/* libvirt's job: the call has been sent, memory is sent, Finish is asked, Finish has been done. */
#define CALLED   1
#define STREAMS  2
#define SWITCHES 3
#define FINISHED 4
/* The ownership token in one host's ledger. */
#define HERE  1
#define GIVEN 2
/* The journal's phases and steps. */
#define DOING   1
#define UNDOING 2
#define DONE    3
#define UNDONE  4
#define LOST    5       /* the conductor and its journal are gone for good (ALONE) */
#define CLAIM   1
#define SWAP    2
#define CONTEXT 3
#define PREPARE 4
#define STREAM  5
#define COMMIT  6
#define ACCEPT  7
#define FINISH  8
#define CLEANUP 9
#define DELETE  10
/* Answers. */
#define YES 1
#define NO  2
#define NIL 3           /* none came */
/* What the network does to a request. */
#define THROUGH 1
#define GONE 2
#define UNANSWERED 3
/* Hosts as Placement names them. */
#define ATS 1
#define ATD 2
#define ATX 3           /* a third host, by a later move (GOESON) */

mtype = { claim_, prepare_, rollback_, abort_, accept_, finish_, swap_, back_, delete_ };

byte faults = FAULTS;

/* libvirt on both sides; it lives on when an agent dies. */
byte domS = RUNS, domD = NONE;
byte job = NONE, jobOf = 0;     /* and the attempt that it carries */
bit  giveUp;                    /* the job was asked to end */

/* The source's ledger: durable. */
byte tokS = HERE;
byte commitOf;                  /* the attempt by which the token left */
byte refused;                   /* commits up to this attempt are refused */
byte context;                   /* the attempt whose context is recorded */
byte asked;                     /* the attempt whose stream was asked for */
bit  left;                      /* its outcome is on record: the domain has left */
byte closed;                    /* the stream's process is closed, up to this attempt (STREAMED) */
byte noStream;                  /* tombstone: no stream up to this attempt */

/* The conductor's journal: durable. */
byte jPhase = DOING, jStep = CLAIM, attempt = 1;
byte jGen;                      /* generation of the instance's consumer, from step 0 */
bit  turned;                    /* an undo came too late: only forward is left */
bit  uStream, uPrepare, uContext, uSwap, uClaim;   /* undone */

/* The source agent's memory: lost when it dies. */
bit own;                        /* this process waits for libvirt's call */
bit inDoubt;                    /* it cannot decide, says why, and keeps looking */
bit tell;                       /* it has seen the domain leave and is about to record it */

/* The destination's ledger: durable. */
byte tokD;
byte claims[ATTEMPTS + 1];
byte accepted;                  /* the attempt that brought the token */
bit  resumed;                   /* that attempt's accept has been done to its end */
byte noClaim, noPrepare;        /* tombstones: up to this attempt */
byte made;                      /* the attempt whose disks and records stand here */

/* Placement. */
byte inst = ATS;                /* where the instance's consumer is counted */
bit  mig;                       /* the migration's consumer holds the source's half */
byte gen = 1;                   /* generation of the instance's consumer */

/* The network: at most one verb and one write to Placement may be late at a time. */
mtype late; byte lateOf;
mtype lateP; byte lateGen;
bit   lateMig;
chan  toD = [0] of { mtype, byte, byte };       /* verb, attempt, who asks: 0 the conductor, 1 nobody any more, 2 the destination itself */
chan  fromD = [0] of { byte };
chan  alone = [0] of { byte };

bit  wish;                      /* an operator has asked for an abort */
byte elsewhere;                 /* the token went on to a third host */
bit  counted;                   /* the holder has written Placement (ALONE) */

/* Ghosts: they decide nothing, the laws speak of them. */
bit  ended[ATTEMPTS + 1];       /* the claim's undo is complete */
byte broken;                    /* a law that one step has broken */
bit  quiet;                     /* nothing can move any more */

#define memoryAtSource (domS == RUNS || domS == STOPS)
#define underWay (job >= STREAMS || (own && (job == CALLED || tell)))
#define canArrive (job == STREAMS || job == SWITCHES)
#define claimed(a) (claims[a] == PENDING || claims[a] == ARRIVING)

/* A process may die here; what it holds in memory is lost, what is durable stays. */
#define DDIES \
	if \
	:: skip \
	:: atomic { faults > 0 -> faults--; SAY("** the agent of the destination is killed\n"); goto died } \
	fi
#ifdef ALONE
#define DIES \
	if \
	:: skip \
	:: atomic { faults > 0 -> faults--; goto vanish } \
	:: atomic { faults > 0 -> faults--; SAY("** the agent of the source is killed\n"); goto restart } \
	fi
#else
#define DIES \
	if \
	:: skip \
	:: atomic { faults > 0 -> faults--; SAY("** the agent of the source is killed\n"); goto restart } \
	fi
#endif

#define BREAK(n) if :: broken == 0 -> broken = n :: else fi

/* ------------------------------------------------------------------ libvirt */

/* What the destination's guard asks when libvirt wants to let a guest in. */
#ifdef M_TICKET_NOT_REVOKED
#define ticket(a) (a > 0 && (claims[a] == ARRIVING || ended[a]))
#else
#define ticket(a) (a > 0 && claims[a] == ARRIVING)
#endif

inline begin(a) {
	if
	:: domS == RUNS && domD == NONE && ticket(a) && closed < a ->
		domD = INCOMING; job = STREAMS;
		SAY("libvirt: stream %d begins, the copy at the destination is paused (migrating)\n", a);
		if :: claims[a] != ARRIVING -> BREAK(10) :: else fi
	:: else ->
		job = NONE; giveUp = 0;
		SAY("libvirt: stream %d is refused\n", a)
	fi
}

proctype libvirt() {
	do
	:: atomic { job == CALLED -> begin(jobOf) }
	:: atomic { job == STREAMS && !giveUp && domD == INCOMING ->
		domS = STOPS; job = SWITCHES; SAY("libvirt: all memory is sent, the source's domain is paused (migrating)\n") }
	:: atomic { canArrive && (giveUp || domD == NONE) ->
		domS = RUNS; job = NONE; giveUp = 0; SAY("libvirt: the stream is given up, the source's domain runs\n") }
	:: atomic { job == STREAMS && faults > 0 ->
		faults--; domS = RUNS; job = NONE; giveUp = 0; SAY("** the stream breaks off, the source's domain runs\n") }
#ifdef M_LIBVIRTS_OWN_HANDOVER
	:: atomic { job == SWITCHES && domD == INCOMING ->
		domD = RUNS; job = FINISHED; SAY("libvirt: Finish at the destination: the copy is whole and RUNS\n") }
#else
	:: atomic { job == SWITCHES && domD == INCOMING ->
		domD = WHOLE; job = FINISHED; SAY("libvirt: Finish at the destination: the copy is whole and paused\n") }
#endif
	:: atomic { job == FINISHED ->
		domS = LEFT; job = NONE; giveUp = 0; tell = own;
		SAY("libvirt: Finish's reply arrives, the source's domain is shut off (migrated)\n") }
	:: atomic { job == FINISHED && faults > 0 ->
		faults--; domS = RUNS; job = NONE; giveUp = 0; SAY("** Finish's reply is lost: libvirt lets the source's domain run again\n") }
	:: atomic { job >= STREAMS && faults > 0 ->
		faults--; job = NONE; giveUp = 0; SAY("** the source's libvirtd is killed in the middle of the job\n") }
#ifdef FORGETS
	:: atomic { job == FINISHED && faults > 0 ->
		faults--; domS = OFF; job = NONE; giveUp = 0; SAY("** the source's libvirtd is killed when the domain has just left; it comes back and does not know why the domain is shut off\n") }
	:: atomic { domS == LEFT && faults > 0 ->
		faults--; domS = OFF; SAY("** the source's libvirtd restarts and forgets why the domain is shut off\n") }
#endif
	:: atomic { job == NONE && domD == INCOMING ->
		domD = NONE; SAY("libvirt: the destination drops the copy whose stream has ended\n") }
	od
}

/* ---------------------------------------------------------------- Placement */

inline write(what, g, m) {
	if
	:: what == swap_ && gen == g && !mig -> inst = ATD; mig = 1; gen++; ans = YES
	:: what == back_ && gen == g && (mig == m) -> inst = ATS; mig = 0; gen++; ans = YES
	:: what == delete_ -> mig = 0; ans = YES
	:: else -> ans = NO
	fi
}

/* One write, as the network lets it through: answered; lost; its answer lost; held
   back; done and repeated later. */
inline place(what, g, m) {
	atomic {
		SAY("placement: {verb %e} at generation %d\n", what, g);
		if
		:: way = THROUGH
		:: faults > 0 -> faults--; way = GONE; SAY("** it is lost\n")
		:: faults > 0 -> faults--; way = UNANSWERED; SAY("** its answer is lost\n")
		:: faults > 0 && lateP == 0 -> faults--; way = GONE; lateP = what; lateGen = g; lateMig = m; SAY("** it is held up\n")
		:: faults > 0 && lateP == 0 -> faults--; way = THROUGH; lateP = what; lateGen = g; lateMig = m; SAY("** it will come once more\n")
		fi;
		if
		:: way != GONE -> write(what, g, m); SAY("placement: {answer %d}\n", ans)
		:: else
		fi;
		if :: way != THROUGH -> ans = NIL :: else fi;
		way = 0
	}
}

/* ---------------------------------------------------------- the destination */

/* The host verbs of the destination, one at a time as under the instance's lock.
   A crash between two steps loses the rest and the answer. */
proctype dest() {
	mtype verb; byte a, who, ans;
	do
	:: toD ? verb, a, who -> ans = NO;
		if
		:: verb == claim_ ->
			atomic {
				if
				:: noClaim >= a || tokD == HERE -> ans = NO
				:: else ->
					if :: ended[a] -> BREAK(5) :: else fi;
					if :: claims[a] == NONE -> claims[a] = PENDING :: else fi;
					ans = YES
				fi;
				SAY("destination: claim of attempt %d: {answer %d}\n", a, ans)
			}
		:: verb == prepare_ ->
			atomic {
				if
				:: noPrepare >= a || !claimed(a) -> ans = NO
				:: else -> made = a; ans = YES
				fi;
				SAY("destination: prepare attempt %d: {answer %d}\n", a, ans)
			}
			if
			:: ans == YES ->
				DDIES;
				atomic {
					if
					:: claims[a] == PENDING -> claims[a] = ARRIVING
					:: claims[a] == NONE -> ans = NO
					:: else
					fi;
					SAY("destination: claim of attempt %d is arriving: {answer %d}\n", a, ans)
				}
			:: else
			fi
		:: verb == rollback_ ->
			if
			:: tokD == HERE -> ans = NO
			:: else ->
#ifndef M_NO_TOMBSTONE_OF_PREPARE
				atomic { if :: noPrepare < a -> noPrepare = a :: else fi; SAY("destination: tombstone of prepare, attempt %d\n", a) }
				DDIES;
#endif
				atomic {
					if
#ifdef M_ROLLBACK_OF_ANY_ATTEMPT
					:: domD != NONE ->
#else
					:: claims[a] == ARRIVING && domD != NONE ->
#endif
						if :: domD == WHOLE && refused < a -> BREAK(11) :: else fi;
						if :: domD != INCOMING && jobOf != a -> BREAK(6) :: else fi;
						domD = NONE; SAY("destination: ends the copy that is not the owner\n")
					:: else
					fi
				}
				DDIES;
				atomic { if :: made == a -> made = 0 :: else fi; ans = YES; SAY("destination: attempt %d is rolled back\n", a) }
			fi
		:: verb == abort_ ->
			if
			:: tokD == HERE -> ans = NO
			:: else ->
#ifndef M_NO_TOMBSTONE_OF_CLAIM
				atomic { if :: noClaim < a -> noClaim = a :: else fi; SAY("destination: tombstone of claim, attempt %d\n", a) }
				DDIES;
#endif
				if
				:: claims[a] == ARRIVING && domD != NONE -> ans = NO; SAY("destination: the claim stays, a copy is here\n")
				:: else ->
					atomic { claims[a] = NONE; ended[a] = 1; ans = YES; SAY("destination: claim of attempt %d is gone\n", a) }
				fi
			fi
		:: verb == accept_ ->
#ifdef M_RESUME_BEFORE_ACCEPT
			atomic { if :: domD == WHOLE && claimed(a) -> domD = RUNS; SAY("destination: the guest is resumed, before its token is here\n") :: else fi }
			DDIES;
#endif
			atomic {
				if
				:: claims[a] == BOUND || resumed -> ans = YES
				:: tokD == HERE -> ans = YES
#ifndef M_ACCEPTED_IS_FORGOTTEN
				:: tokD != HERE && accepted == a && !claimed(a) -> ans = YES
				:: tokD != HERE && accepted != 0 && accepted != a -> ans = NO
				:: tokD != HERE && accepted == 0 && !claimed(a) -> ans = NO
				:: tokD != HERE && accepted == 0 && claimed(a) ->
#else
				:: tokD != HERE && !(claims[a] == BOUND || resumed) ->
#endif
					if :: commitOf != a -> BREAK(11) :: else fi;
					tokD = HERE; accepted = a; ans = YES; SAY("destination: the token is accepted, attempt %d\n", a)
				:: else -> ans = NO
				fi
			}
			if
			:: ans == YES && tokD == HERE && !resumed && claims[a] != BOUND ->
				DDIES;
				atomic { if :: domD == WHOLE -> domD = RUNS; SAY("destination: the guest is resumed\n") :: else fi }
				DDIES;
				resumed = 1
			:: else
			fi
		:: verb == finish_ ->
			atomic {
				if
				:: tokD == HERE -> claims[a] = BOUND; made = 0; ans = YES
				:: tokD != HERE && accepted == a -> ans = YES    /* it has gone on */
				:: else -> ans = NO
				fi;
				SAY("destination: the claim of attempt %d is bound: {answer %d}\n", a, ans)
			}
		fi;
		DDIES;
		goto answer;
died:		ans = NIL;
answer:		if
		:: who == 0 -> fromD ! ans
		:: who == 1
		:: who == 2 -> alone ! ans
		fi;
		atomic { ans = 0; verb = 0; a = 0; who = 0 }
	od
}

/* --------------------------------------------------------------- the source */

/* A verb of the destination, as the network lets it through. */
inline call(v) {
	if
	:: toD ! v, attempt, 0; fromD ? ans
	:: atomic { faults > 0 -> faults--; ans = NIL; SAY("** the network loses {verb %e}\n", v) }
	:: atomic { faults > 0 -> faults-- } toD ! v, attempt, 0; atomic { fromD ? ans; ans = NIL; SAY("** the network loses the answer to {verb %e}\n", v) }
	:: atomic { faults > 0 && late == 0 -> faults--; late = v; lateOf = attempt; ans = NIL; SAY("** the network holds {verb %e} up\n", v) }
	:: atomic { faults > 0 && late == 0 -> faults--; late = v; lateOf = attempt; SAY("** the network will deliver {verb %e} once more\n", v) } toD ! v, attempt, 0; fromD ? ans
	fi
}

#define JOURNAL(step) atomic { jStep = step; SAY("source: journal: {step %d} begins\n", step) }
#define FAILED atomic { jPhase = UNDOING; ans = 0; SAY("source: journal: the move is given up at {step %d}\n", jStep); goto undo }
/* An abort is heard before the point of no return only. */
#define HEAR if :: wish && !turned && jStep <= STREAM -> FAILED :: else fi

proctype source() {
	byte ans, g, way; bit m, failed, there;
	byte sent;              /* generation that the undo of the swap was sent with */
	atomic { jGen = gen; goto claim };

restart: atomic {
		own = 0; tell = 0; inDoubt = 0; ans = 0; g = 0; m = 0; there = 0; failed = 0; sent = 0;
#ifndef HUNG
		/* A call that had not reached libvirt: taken up before the agent is back, or never. */
		if
		:: job == CALLED -> if :: job = NONE; giveUp = 0 :: begin(jobOf) fi
		:: else
		fi;
#endif
		SAY("source: starts and reads its journal: {phase %d}, {step %d}\n", jPhase, jStep);
		if
		:: jPhase == UNDOING -> goto undo
		:: jPhase == DONE || jPhase == UNDONE -> goto over
		:: jPhase == DOING && jStep == CLAIM -> goto claim
		:: jPhase == DOING && jStep == SWAP -> goto swap
		:: jPhase == DOING && jStep == CONTEXT -> goto record
		:: jPhase == DOING && jStep == PREPARE -> FAILED        /* UndoOnRestart */
		:: jPhase == DOING && jStep == STREAM -> goto stream
		:: jPhase == DOING && jStep == COMMIT -> goto commit
		:: jPhase == DOING && jStep == ACCEPT -> goto accept
		:: jPhase == DOING && jStep == FINISH -> goto finish
		:: jPhase == DOING && jStep == CLEANUP -> goto cleanup
		:: jPhase == DOING && jStep == DELETE -> goto delete
		fi
	}

	/* 3: the claim on the destination. */
claim:	HEAR;
	call(claim_);
	DIES;
	if
	:: ans == YES -> JOURNAL(SWAP)
	:: ans == NIL -> goto claim
	:: ans != YES -> FAILED
	fi;

	/* 4: the two consumers, in one write guarded by the generation. */
swap:	HEAR;
	g = jGen;
#ifdef M_SWAP_IN_TWO_CALLS
	atomic { if :: gen == g -> inst = ATD; gen++; SAY("placement: the instance is written\n") :: else fi }
	DIES;
	atomic { mig = 1; ans = YES; SAY("placement: the migration is written\n") }
#else
swap1:	place(swap_, g, 0);
	DIES;
	if
	:: ans == YES
	:: ans != YES ->                /* look, one consumer after the other; then go on or give up */
		atomic { g = gen; there = (inst == ATD) }
		if
		:: there && mig
		:: !there && !mig -> goto swap1
		:: FAILED
		fi
	fi;
	g = 0; there = 0;
#endif
	JOURNAL(CONTEXT);
	DIES;

	/* 6: the context on the source. */
record:	HEAR;
	atomic { context = attempt; SAY("source: the context is recorded\n") }
	DIES;
	JOURNAL(PREPARE);
	DIES;

	/* 7: pre_live_migration. */
prepare: HEAR;
	call(prepare_);
	DIES;
	if
	:: ans == YES -> JOURNAL(STREAM)
	:: ans == NIL -> goto prepare
	:: ans != YES -> FAILED
	fi;
	DIES;

	/* 8a: the stream. What was asked for is adopted, never asked for again. */
stream:
#ifdef M_TOMBSTONE_BEFORE_ADOPTION
	if :: noStream >= attempt -> FAILED :: else fi;
#endif
	if
	:: asked == attempt
	:: asked != attempt && (noStream >= attempt || refused >= attempt || context != attempt) -> FAILED
	:: asked != attempt && !(noStream >= attempt || refused >= attempt || context != attempt) ->
#ifndef M_STREAM_BEFORE_RECORD
		atomic { asked = attempt; left = 0; SAY("source: the stream is asked for: on record\n") }
		DIES;
#endif
		atomic {
			if :: job != NONE -> BREAK(5) :: else fi;
			job = CALLED; jobOf = attempt; own = 1; SAY("source: libvirt is told to migrate\n")
		}
#ifdef M_STREAM_BEFORE_RECORD
		DIES;
		atomic { asked = attempt; left = 0; SAY("source: the stream is asked for: on record\n") }
#endif
	fi;
watch:	DIES;
#ifdef M_COMMIT_UNSEEN
	if
	:: job == FINISHED || domS == STOPS -> JOURNAL(COMMIT); goto commit
	:: skip
	fi;
#endif
	if
	:: atomic { domS == LEFT || (domS == OFF && left) -> tell = 1; ans = YES }
	:: wish && !turned -> ans = NO
	:: memoryAtSource && !underWay -> ans = NO
	:: atomic { domS == OFF && !left ->             /* nothing here tells: the destination is asked */
		if
		:: domD == WHOLE -> ans = NIL
		:: else -> ans = NO
		fi }
	fi;
	if
	:: ans == YES -> JOURNAL(COMMIT)
	:: ans == NO -> FAILED
#ifdef M_GUESSES
	:: ans == NIL -> FAILED
#else
	:: ans == NIL -> inDoubt = 1; goto doubt
#endif
	fi;
	DIES;

	/* 8b: the commit, the point of no return. */
commit:
#ifdef M_SURRENDER_AFTER_ACCEPT
	call(accept_);
	DIES;
#endif
	if
	:: commitOf == attempt -> ans = YES
	:: commitOf != attempt && !underWay && memoryAtSource ->
#ifdef M_COMMIT_UNSEEN
		ans = YES
#else
		ans = NO
#endif
	:: commitOf != attempt && domS == LEFT -> ans = YES
	:: commitOf != attempt && domS == OFF ->
#ifdef M_HOST_FORGETS_THE_JOURNAL
		if :: left -> ans = YES :: else -> ans = NIL fi
#else
		ans = YES               /* this step begins only when the domain was seen to have left */
#endif
#ifdef M_COMMIT_UNSEEN
	:: commitOf != attempt && underWay -> ans = YES
#endif
	fi;
	if
	:: ans == NIL -> inDoubt = 1; goto doubt
	:: ans == NO -> FAILED
	:: ans == YES
	fi;
	atomic {
		if
		:: commitOf == attempt -> ans = YES
		:: commitOf != attempt && refused >= attempt -> ans = NO
		:: else ->
			if :: memoryAtSource -> BREAK(11) :: else fi;
			tokS = GIVEN; commitOf = attempt; ans = YES; SAY("source: COMMIT: the token leaves, attempt %d\n", attempt)
		fi
	}
	if :: ans == YES :: else -> FAILED fi;
	DIES;
	JOURNAL(ACCEPT);
	DIES;

	/* 8c, 9: forward only, again and again until it is done. */
accept:	call(accept_);
	DIES;
	if
	:: ans == YES -> JOURNAL(FINISH)
#ifdef M_UNDO_PAST_COMMIT
	:: ans != YES -> uStream = 1; FAILED
#endif
#ifdef M_LOST_ANSWER_IS_TAKEN_FOR_DONE
	:: ans == NIL -> JOURNAL(FINISH)
#else
	:: ans == NIL -> goto accept
#endif
	:: ans == NO -> inDoubt = 1; goto doubt
	fi;
	DIES;
finish:	call(finish_);
	DIES;
	if
#ifdef M_ALLOCATION_DELETED_FIRST
	:: ans == YES -> place(delete_, 0, 0); JOURNAL(CLEANUP)
#else
	:: ans == YES -> JOURNAL(CLEANUP)
#endif
	:: ans == NIL -> goto finish
	:: ans == NO -> inDoubt = 1; goto doubt
	fi;
	DIES;

	/* 10: what is left at the source. */
cleanup: atomic {
		if :: memoryAtSource && tokS == HERE -> BREAK(6) :: else fi;
		domS = NONE; SAY("source: its definition is removed\n")
	}
	DIES;
	atomic { tokS = NONE; context = 0; asked = 0; left = 0; tell = 0; SAY("source: record, claim and context are gone\n") }
	DIES;
	JOURNAL(DELETE);
	DIES;

	/* 11: the migration's allocation. */
delete:	place(delete_, 0, 0);
	DIES;
	if :: ans == YES :: ans != YES -> goto delete fi;
	atomic { jPhase = DONE; SAY("source: journal: the move is done\n"); goto over };

	/* The undo, from the last step that was begun. Those at the destination and in
	   Placement may lag; that of the stream may not. */
undo:	failed = 0;
	if
	:: jStep >= STREAM && !uStream ->
		/* 8a's and 8b's: the source decides to keep the guest. */
#ifndef M_GUESSES
		if
		:: atomic { domS == OFF && !left && domD == WHOLE -> inDoubt = 1; goto doubt }
		:: else
		fi;
#endif
		if :: commitOf != 0 -> goto tooLate :: else fi;
		atomic { if :: noStream < attempt -> noStream = attempt :: else fi; SAY("source: tombstone of the stream\n") }
		DIES;
#ifdef M_JOB_GOES_ON
		atomic { giveUp = (job != NONE); SAY("source: libvirt is told to give the job up, and its end is not awaited\n") }
#else
reclaim:	if
		:: domS == LEFT || (domS == OFF && left) -> goto tooLate
		:: underWay && !(domS == LEFT) ->
			atomic { giveUp = (job != NONE); SAY("source: libvirt is told to give the job up\n") }
			DIES;
			atomic { !underWay -> giveUp = 0 }
			goto reclaim
		:: !underWay && memoryAtSource
#if defined(M_OFF_IS_TAKEN_FOR_ENDED) || defined(M_GUESSES)
		:: !underWay && domS == OFF && !left
#else
		:: atomic { !underWay && domS == OFF && !left -> goto undo }    /* the destination is asked first */
#endif
		fi;
#endif
#ifdef STREAMED
		atomic {
			closed = attempt; SAY("source: the stream is closed, nothing can pass any more\n");
			if :: job >= STREAMS -> job = NONE; giveUp = 0; domS = RUNS :: else fi
		}
		DIES;
#ifndef M_NO_SECOND_LOOK
		if :: !memoryAtSource -> goto undo :: else fi;  /* a call that libvirt took up late may have run meanwhile */
#endif
#endif
		DIES;
#ifndef M_REFUSAL_NOT_WRITTEN
		atomic { if :: !memoryAtSource -> BREAK(11) :: else fi; refused = attempt; SAY("source: the guest stays: commits of attempt %d are refused\n", attempt) }
		DIES;
#endif
		atomic { if :: domS == STOPS && job == NONE -> domS = RUNS; SAY("source: the guest is resumed\n") :: else fi }
		DIES;
		atomic { uStream = 1; SAY("source: journal: the stream is undone\n") }
		DIES
	:: else
	fi;
	if
	:: jStep >= PREPARE && !uPrepare ->
		call(rollback_);
		DIES;
		if :: ans == YES -> uPrepare = 1 :: else -> failed = 1 fi;
		DIES
	:: else
	fi;
	if
	:: jStep >= CONTEXT && !uContext ->
		atomic { context = 0; asked = 0; left = 0; tell = 0; SAY("source: the context is dropped\n") }
		DIES;
		uContext = 1
	:: else
	fi;
	if
	:: jStep >= SWAP && !uSwap ->
		sent = 0;
back:		atomic { g = gen; there = (inst == ATS) }
		m = mig;
#ifdef M_UNDO_BY_READING
		if :: !m -> ans = YES; goto backed :: else fi;
#endif
		if
		:: sent != 0 && !m && there && g > sent && g > jGen -> ans = YES
		:: else ->
			sent = g;
			place(back_, g, m);
			DIES;
			if :: ans == YES :: else -> goto back fi
		fi;
backed:		sent = 0; g = 0; m = 0; there = 0;
		DIES;
		uSwap = 1
	:: else
	fi;
	if
	:: !uClaim ->
		call(abort_);
		DIES;
		if :: ans == YES -> uClaim = 1 :: else -> failed = 1 fi;
		DIES
	:: else
	fi;
#ifndef M_NEXT_ATTEMPT_EARLY
	if :: failed -> goto undo :: else fi;
#endif
	atomic {
		SAY("source: journal: attempt %d is undone\n", attempt);
		failed = 0; ans = 0; g = 0; there = 0;
		if
#if ATTEMPTS > 1
		:: attempt < ATTEMPTS && !wish ->
			attempt++; jPhase = DOING; jStep = CLAIM; turned = 0; jGen = gen;
			uStream = 0; uPrepare = 0; uContext = 0; uSwap = 0; uClaim = 0;
			SAY("source: journal: attempt %d begins\n", attempt);
			goto claim
#endif
		:: jPhase = UNDONE; goto over
		fi
	};

	/* The guest has left: forward again from the step whose undo came too late. */
tooLate: atomic {
		jPhase = DOING; turned = 1; SAY("source: journal: too late to undo, forward again\n");
		if :: jStep == STREAM -> goto stream :: else -> goto commit fi
	};

	/* It looks again and again; what it waits for is a record that says more. */
doubt:	SAY("source: IN DOUBT\n");
	DIES;
	atomic { left && (jStep == STREAM || jStep == COMMIT) -> inDoubt = 0; ans = 0;
		if
		:: jPhase == UNDOING -> goto undo
		:: jPhase == DOING && jStep == STREAM -> goto stream
		:: jPhase == DOING && jStep == COMMIT -> goto commit
		fi
	};

#ifdef ALONE
vanish:	atomic {
		jPhase = LOST; own = 0; tell = 0; inDoubt = 0; ans = 0; g = 0; m = 0; there = 0; failed = 0; sent = 0;
		if :: job == CALLED -> if :: job = NONE; giveUp = 0 :: begin(jobOf) fi :: else fi;
		SAY("** the conductor and its journal are gone for good\n")
	};
	/* What is left is the source's host and its ledger, and an operator who says
	   `berth migration settle`. The host looks at its own domain alone. */
settle:	if
	:: atomic { commitOf == 0 && refused == 0 && tokS == HERE && !canArrive && job == NONE && domS == LEFT ->
		tokS = GIVEN; commitOf = 1; SAY("source, asked to settle: COMMIT: the token leaves\n") }
	:: atomic { commitOf == 0 && refused == 0 && tokS == HERE && job == NONE && memoryAtSource ->
		noStream = 1; refused = 1; SAY("source, asked to settle: the guest stays\n") }
	:: commitOf != 0 || refused != 0 || tokS != HERE
	fi;
	atomic { if :: refused && domS == STOPS -> domS = RUNS; SAY("source: the guest is resumed\n") :: else fi };
	if
	:: refused -> atomic { context = 0; asked = 0; left = 0 }
	:: atomic { commitOf && claims[1] == BOUND && tokD == HERE -> domS = NONE; tokS = NONE; context = 0; asked = 0; left = 0; SAY("source: what the guest left is removed\n") }
	fi;
#endif
over:	skip
}

/* ------------------------------------------------- network, time and people */

proctype world() {
	byte ans; byte i;
	do
	/* A claim's lease is over: whenever the conductor was silent for long. */
	:: atomic { claims[attempt] == PENDING -> claims[attempt] = NONE; SAY("destination: the lease of attempt %d is over, its claim is gone\n", attempt) }
#if ATTEMPTS > 1
	:: atomic { claims[1] == PENDING && attempt > 1 -> claims[1] = NONE; SAY("destination: the lease of attempt 1 is over, its claim is gone\n") }
#endif
#ifdef M_LEASE_OF_AN_ARRIVING_CLAIM
	:: atomic { claims[attempt] == ARRIVING && tokD != HERE -> claims[attempt] = NONE; SAY("destination: the lease of an ARRIVING claim is over, it is gone\n") }
#endif
	:: atomic { late != 0 -> SAY("** a late {verb %e} of attempt %d lands\n", late, lateOf) }
		atomic { toD ! late, lateOf, 1; late = 0; lateOf = 0 }
	:: atomic { lateP != 0 -> write(lateP, lateGen, lateMig); SAY("** a late {verb %e} at generation %d lands in Placement: {answer %d}\n", lateP, lateGen, ans); lateP = 0; lateGen = 0; lateMig = 0; ans = 0 }
	:: atomic { tell -> if :: asked != 0 -> left = 1 :: else fi; tell = 0; SAY("source: that the domain has left is on record\n") }
	:: atomic { !wish && jPhase == DOING && jStep <= COMMIT -> wish = 1; SAY("operator: abort\n") }
#ifdef STRANGERS
	/* Somebody who kept an old ticket, or has none. */
	:: atomic { job == NONE && domD == NONE && ended[1] && ticket(1) -> domD = INCOMING; SAY("stranger: streams with a ticket that was revoked\n"); BREAK(10) }
#endif
#ifdef GOESON
	:: atomic { claims[attempt] == BOUND && tokD == HERE && resumed && jPhase == DONE && !elsewhere ->
		tokD = GIVEN; domD = NONE; claims[attempt] = NONE; resumed = 0; elsewhere = 1; inst = ATX; gen++; SAY("the guest goes on to a third host\n") }
#endif
#ifdef ALONE
	:: atomic { jPhase == LOST && !counted && (tokD == HERE && claims[1] == BOUND && domS == NONE || refused && claims[1] == NONE && context == 0) ->
		counted = 1; gen++; mig = 0; if :: tokD == HERE -> inst = ATD :: else -> inst = ATS fi; SAY("placement: the token's holder writes where the guest is\n") }
#endif
	od
}

#ifdef ALONE
/* The destination by itself: sides.go and fate.go. */
proctype lone() {
	byte ans;
	do
	/* The destination has not heard of the conductor for a while. It asks the source
	   what became of the attempt, whose ledger answers: committed, kept, or nothing;
	   and acts on the answer later. */
	:: atomic { (tokD != HERE && commitOf == 1 && claims[1] == ARRIVING) || (tokD == HERE && claims[1] == ARRIVING) ->
		SAY("destination, alone: the token is mine by the source's ledger\n") }
		toD ! accept_, 1, 2; alone ? ans;
		if :: ans == YES -> toD ! finish_, 1, 2; alone ? ans :: else fi;
		ans = 0
	:: atomic { tokD != HERE && (refused >= 1 || jPhase == UNDONE) && (claimed(1) || made == 1) ->
		SAY("destination, alone: the source's ledger keeps the guest\n") }
		toD ! rollback_, 1, 2; alone ? ans;
		if :: ans == YES -> toD ! abort_, 1, 2; alone ? ans :: else fi;
		ans = 0
	:: atomic { tokD != HERE && claims[1] == NONE && made == 1 && jPhase == LOST -> SAY("destination, alone: what no claim names goes\n") }
		toD ! rollback_, 1, 2; alone ? ans; ans = 0
#ifdef M_DESTINATION_TAKES_OVER
	:: atomic { domD == WHOLE && domS == LEFT && tokD != HERE && claims[1] == ARRIVING ->
		tokD = HERE; accepted = 1; domD = RUNS; SAY("destination, alone: the source's domain has left, so the guest is mine\n") }
#endif
#ifdef M_DESTINATION_CLEARS
	:: atomic { domS == RUNS && domD != NONE && tokD != HERE -> SAY("destination, alone: the source's domain runs, so this copy is no more needed\n") }
		atomic { domD = NONE; SAY("destination, alone: the copy is ended\n") }
#endif
	od
}
#endif

/* --------------------------------------------------------------------- laws */

#define copies ((domS == RUNS) + (domD == RUNS) + elsewhere)
#define tokens ((tokS == HERE) + (tokD == HERE) + elsewhere)

#define law1 (copies <= 1 && tokens <= 1 && !(domS == RUNS && tokS != HERE) && !(domD == RUNS && tokD != HERE))
#define law2 (!(domD != NONE && claims[jobOf] < ARRIVING) && !(canArrive && claims[jobOf] < ARRIVING))
#define law4 ((domS == NONE || inst == ATS || mig) && !(jPhase == UNDONE && (inst != ATS || mig)) && !(jPhase == DONE && (inst == ATS || mig)))
#define law5 (!(tokS == GIVEN && tokD != HERE && !elsewhere && (domD != WHOLE || claims[commitOf] != ARRIVING)))
#define law6 (memoryAtSource || domD == WHOLE || domD == RUNS || elsewhere)

#define nothingLeft (context == 0 && late == 0 && lateP == 0)
#define endDone (tokD == HERE && domD == RUNS && domS == NONE && tokS == NONE && claims[attempt] == BOUND && inst == ATD && !mig || elsewhere)
#define endUndone (tokS == HERE && domS == RUNS && domD == NONE && made == 0 && inst == ATS && !mig)
#define noClaimBut(a) (a == 1 || claims[1] == NONE)

#ifndef ONLY
#define ONLY 0
#endif

proctype monitor() {
	if
#if ONLY == 0 || ONLY == 1
	:: atomic { !law1 -> SAY("LAW 1 IS BROKEN: one owner, one running copy, and only the owner's runs\n"); assert(false) }
#endif
#if ONLY == 0 || ONLY == 2
	:: atomic { !law2 -> SAY("LAW 2 IS BROKEN: no arrival without a claim, and no claim ends while something can arrive for it\n"); assert(false) }
#endif
#if ONLY == 0 || ONLY == 4
	:: atomic { !law4 -> SAY("LAW 4 IS BROKEN: two consumers in one write, one of them left at the end, where the guest is\n"); assert(false) }
#endif
#if ONLY == 0 || ONLY == 5
	:: atomic { !law5 || broken == 5 -> SAY("LAW 5 IS BROKEN: late verbs are refused, and past the commit there is only forward\n"); assert(false) }
#endif
#if ONLY == 0 || ONLY == 6
	:: atomic { !law6 || broken == 6 -> SAY("LAW 6 IS BROKEN: the guest's only whole copy is never taken away\n"); assert(false) }
#endif
#if ONLY == 0 || ONLY == 10
	:: atomic { broken == 10 -> SAY("LAW 10 IS BROKEN: no stream without a ticket\n"); assert(false) }
#endif
#if ONLY == 0 || ONLY == 11
	:: atomic { broken == 11 -> SAY("LAW 11 IS BROKEN: nothing is decided by what one host shows\n"); assert(false) }
#endif
	/* Nothing can move any more: all faults are over and every message has landed. */
	:: atomic { timeout ->
		SAY("all is quiet: the journal says {phase %d} at {step %d}; source: domain {domain %d}, token {token %d}; destination: domain {domain %d}, token {token %d}, claim {claim %d}; Placement: instance at {host %d}, migration holds {half %d}\n", jPhase, jStep, domS, tokS, domD, tokD, claims[attempt], inst, mig);
#if ONLY == 0 || ONLY == 12
		if
		:: !inDoubt && jPhase == DONE && endDone && nothingLeft && noClaimBut(attempt)
		:: jPhase == UNDONE && endUndone && nothingLeft && claims[attempt] == NONE && noClaimBut(attempt)
#ifdef FORGETS
		/* What really cannot be decided: the domain is off, nobody wrote down why, and
		   a whole copy waits. Nothing of it is taken away. */
		:: inDoubt && jStep == STREAM && domS == OFF && !left && domD == WHOLE && tokS == HERE && claims[attempt] == ARRIVING
#endif
#ifdef ALONE
		:: jPhase == LOST && counted && (endDone || endUndone && claims[1] == NONE)
#endif
		:: else -> SAY("NOT SETTLED: something is left, or stands still\n"); assert(false)
		fi;
#endif
		quiet = 1 }
	fi
}

init { atomic { run libvirt(); run dest(); run source(); run world(); run monitor();
#ifdef ALONE
	run lone()
#else
	skip
#endif
} }

#ifdef LIVE
ltl settles { <> quiet }
#endif
