/*
 * cold.pml: one move of a guest that is off meanwhile, to another host, and its
 * confirmation or its revert. docs/model.md says in words what is here.
 *
 * The guest is at the source S and goes to the destination D under attempt 1; a
 * revert brings it back under attempt 2. What is written down durably is one
 * atomic step, and between any two an agent may be killed. At most FAULTS things
 * go wrong in one run.
 *
 * The laws are in monitor(), at the end. Mutants are compiled in by -DM_NAME.
 */
#ifndef FAULTS
#define FAULTS 2        /* crashes, lost, held and repeated messages, steps that fail */
#endif

#define SAY printf

/* Domains. */
#define NONE 0
#define RUNS 1
#define OFF  4
/* Claims: pending, arriving, the instance's own, the migration's and held. */
#define PENDING  1
#define ARRIVING 2
#define BOUND    3
#define HELD     4
/* Tokens. */
#define HERE  1
#define GIVEN 2
/* The journal's phases and steps. */
#define DOING    1
#define UNDOING  2
#define DONE     3
#define UNDONE   4
#define FINISHED 6
#define CLAIM   21
#define PREP    22
#define POWER   23
#define HAND    24      /* the point of no return */
#define ACCEPT  25
#define FINISH  26
#define CONFIRM 31      /* only forward from here */
#define CONFIRMD 32
#define AWAIT   41
#define POWERD  42
#define HANDD   43      /* the revert's */
#define ACCEPTS 44
#define FINISHS 45
#define CLEANUP 46
/* Answers, and what the network does to a request. */
#define YES 1
#define NO  2
#define NIL 3
#define THROUGH 1
#define GONE 2
#define UNANSWERED 3

mtype = { claim_, abort_, prep_, rollback_, accept_, finish_, off_, on_, hand_, keep_, confirm_, cleanup_ };

byte faults = FAULTS;
bit  unfit;                     /* the guest cannot be started at the destination */

/* The source, durable. */
byte domS = RUNS, tokS = HERE, clS = BOUND;
bit  keptS, noOffS;             /* no hand-over, no power-off of attempt 1 any more */
bit  noAwait, acceptedS;        /* of attempt 2 */
/* The destination, durable. */
byte domD = NONE, tokD, clD = NONE;
bit  noClaim, noPrep, acceptedD;
bit  keptD, noOffD;             /* of attempt 2 */
bit  contextD;
/* The conductor's journal, durable. */
byte jPhase = DOING, jStep = CLAIM;
bit  reverted;                  /* a revert was tried: there is no second here */
bit  back;                      /* the guest was handed back */
bit  confirmed;

mtype late;                     /* a verb that is held up */
chan toD = [0] of { mtype, bit };       /* verb; whether somebody waits for the answer */
chan fromD = [0] of { byte };
byte broken;
bit  quiet;

#define DIES \
	if \
	:: skip \
	:: atomic { faults > 0 -> faults--; SAY("** the agent of the source is killed\n"); goto restart } \
	fi
#define DDIES \
	if \
	:: skip \
	:: atomic { faults > 0 -> faults--; SAY("** the agent of the destination is killed\n"); goto died } \
	fi
#define BREAK(n) if :: broken == 0 -> broken = n :: else fi

/* ---------------------------------------------------------- the destination */

proctype dest() {
	mtype verb; bit asked; byte ans;
	do
	:: toD ? verb, asked -> ans = NO;
		if
		:: verb == claim_ -> atomic {
			if
			:: noClaim || acceptedD -> ans = NO
			:: else -> if :: clD == NONE -> clD = PENDING; contextD = 1 :: else fi; ans = YES
			fi }
		:: verb == abort_ -> atomic {
			if
			:: tokD == HERE -> ans = NO
			:: else -> noClaim = 1; clD = NONE; contextD = 0; ans = YES
			fi }
		:: verb == prep_ -> atomic {
			if
			:: noPrep || (clD != PENDING && clD != ARRIVING) -> ans = NO
			:: else -> clD = ARRIVING; ans = YES
			fi }
		:: verb == rollback_ -> atomic {
			if
			:: tokD == HERE -> ans = NO
			:: else -> noPrep = 1; ans = YES
			fi }
		:: verb == accept_ -> atomic {
#ifdef M_TOKEN_TAKEN_BACK
			if
			:: clD != ARRIVING && clD != BOUND && clD != HELD -> ans = NO
			:: else -> tokD = HERE; acceptedD = 1; ans = YES
			fi
#else
			if
			:: tokD == HERE -> ans = YES
			:: tokD == GIVEN || clD != ARRIVING -> ans = NO
			:: else -> tokD = HERE; acceptedD = 1; ans = YES
			fi
#endif
			}
		:: verb == finish_ ->
			if
#ifdef M_STARTS_WITHOUT_TOKEN
			:: clD == NONE -> ans = NO
#else
			:: tokD != HERE -> ans = NO
#endif
			:: else -> if
				:: unfit -> ans = NO
				:: !unfit ->
					/* A user's guest that was powered off by a revert is not started by a late message. */
					atomic { if :: clD == ARRIVING || clD == HELD -> domD = RUNS :: else fi; SAY("destination: the guest is started\n") }
					DDIES;
					atomic { if :: clD == ARRIVING -> clD = BOUND :: else fi; ans = YES }
				fi
			fi
		:: verb == off_ -> atomic {
#ifdef M_LATE_POWER_OFF
			if
			:: tokD != HERE -> ans = NO
#else
			if
			:: noOffD || tokD != HERE -> ans = NO
#endif
			:: else -> if :: domD == RUNS -> domD = OFF :: else fi; ans = YES; SAY("destination: the guest is powered off\n")
			fi }
		:: verb == on_ ->
			atomic { noOffD = 1 }
			DDIES;
			atomic { if :: tokD == HERE && !unfit -> domD = RUNS :: else fi; ans = YES }
		:: verb == hand_ -> atomic {
			if
			:: tokD == GIVEN -> ans = YES
#ifdef M_KEEP_IS_FORGOTTEN
			:: tokD != HERE || domD == RUNS -> ans = NO
#else
			:: tokD != HERE || domD == RUNS || keptD -> ans = NO
#endif
			:: else -> tokD = GIVEN; clD = HELD; ans = YES; SAY("destination: hands the guest back\n")
			fi }
		:: verb == keep_ -> atomic {
			if
			:: tokD == GIVEN -> ans = NO
			:: else -> keptD = 1; ans = YES
			fi }
		:: verb == confirm_ -> atomic { contextD = 0; ans = YES }
		:: verb == cleanup_ -> atomic {
			if
			:: tokD == HERE -> ans = NO
			:: else -> domD = NONE; clD = NONE; contextD = 0; tokD = NONE; noClaim = 1; noPrep = 1; ans = YES
			fi }
		fi;
		SAY("destination: {verb %e}: {answer %d}\n", verb, ans);
		if :: asked -> fromD ! ans :: else fi;
		goto next;
died:		if :: asked -> fromD ! NIL :: else fi;
next:		skip
	od
}

/* ---------------------------------------------------------------- the source */

/* ask gives a verb to the destination, as the network lets it through. */
inline ask(v) {
	atomic {
		if
		:: way = THROUGH
		:: faults > 0 -> faults--; way = GONE; SAY("** {verb %e} is lost\n", v)
		:: faults > 0 -> faults--; way = UNANSWERED; SAY("** the answer to {verb %e} is lost\n", v)
		:: faults > 0 && late == 0 -> faults--; way = GONE; late = v; SAY("** {verb %e} is held up\n", v)
		:: faults > 0 && late == 0 -> faults--; way = THROUGH; late = v; SAY("** {verb %e} will come once more\n", v)
		fi
	}
	if
	:: way == GONE -> ans = NIL
	:: else -> toD ! v, 1; fromD ? ans; if :: way == UNANSWERED -> ans = NIL :: else fi
	fi;
	way = 0
}

/* to is the journal: the next step is durable. */
#define TO(step) atomic { jStep = step; SAY("source: journal: step %d\n", jStep) }
/* A step that was refused, or that somebody gives up, is undone, and all before it. */
#define FAILS if :: ans == NO -> jPhase = UNDOING; goto again :: else fi
#define GIVESUP if :: skip :: atomic { faults > 0 -> faults--; jPhase = UNDOING; SAY("** the step fails\n"); goto again } fi
#define UNTIL if :: ans == YES -> skip :: else -> goto again fi

proctype source() {
	byte ans, way;
restart: way = 0;
again:	do
	:: jPhase == DOING && jStep == CLAIM -> ask(claim_); FAILS; UNTIL; DIES; TO(PREP)
	:: jPhase == DOING && jStep == PREP -> GIVESUP; ask(prep_); FAILS; UNTIL; DIES; TO(POWER)
	:: jPhase == DOING && jStep == POWER -> GIVESUP;
#ifndef M_HAND_OVER_WHILE_RUNNING
		atomic { if :: tokS == HERE -> domS = OFF; SAY("source: the guest is powered off\n") :: else fi }
#endif
		DIES; TO(HAND)
	:: jPhase == DOING && jStep == HAND -> GIVESUP;
		atomic {
			if
			:: tokS == GIVEN -> ans = YES
			:: tokS == HERE && keptS -> ans = NO
#ifdef M_HAND_OVER_WHILE_RUNNING
			:: tokS == HERE && !keptS -> tokS = GIVEN; clS = HELD; ans = YES
#else
			:: tokS == HERE && !keptS && domS == RUNS -> domS = OFF; ans = NIL
			:: tokS == HERE && !keptS && domS != RUNS -> tokS = GIVEN; clS = HELD; ans = YES
#endif
			fi;
#ifdef M_HELD_HALF_RELEASED
			if :: ans == YES -> clS = NONE :: else fi;
#endif
			SAY("source: hands the guest over: {answer %d}\n", ans)
		}
		FAILS; UNTIL; DIES; TO(ACCEPT)
	:: jPhase == DOING && jStep == ACCEPT -> ask(accept_); UNTIL; DIES; TO(FINISH)
	:: jPhase == DOING && jStep == FINISH -> ask(finish_);
		if
		:: ans == YES -> DIES; atomic { jPhase = FINISHED; SAY("source: it is finished\n") }
		:: ans == NO -> DIES; atomic { reverted = 1; jStep = AWAIT; SAY("source: the guest cannot live there, it is taken back\n") }
		:: else
		fi

	/* Somebody's word. */
	:: atomic { jPhase == FINISHED -> jPhase = DOING; jStep = CONFIRM; confirmed = 1; SAY("source: it is confirmed\n") }
	:: atomic { jPhase == FINISHED && !reverted -> jPhase = DOING; jStep = AWAIT; reverted = 1; SAY("source: it is to be reverted\n") }

	:: jPhase == DOING && jStep == CONFIRM ->
		atomic { if :: tokS == GIVEN -> clS = NONE; domS = NONE; tokS = NONE :: else fi }
		DIES; TO(CONFIRMD)
	:: jPhase == DOING && jStep == CONFIRMD -> ask(confirm_); UNTIL; DIES; atomic { jPhase = DONE }

	:: jPhase == DOING && jStep == AWAIT ->
		atomic { if :: !noAwait && clS == HELD -> clS = ARRIVING :: else fi }
		DIES; TO(POWERD)
	:: jPhase == DOING && jStep == POWERD -> if :: unfit :: else -> GIVESUP fi; ask(off_); FAILS; UNTIL; DIES; TO(HANDD)
	:: jPhase == DOING && jStep == HANDD -> if :: unfit :: else -> GIVESUP fi;
#ifdef M_RETURNS_BEFORE_HAND_BACK
		atomic { tokS = HERE; acceptedS = 1 }
#endif
		ask(hand_); FAILS; UNTIL; DIES; atomic { back = 1; jStep = ACCEPTS }
	:: jPhase == DOING && jStep == ACCEPTS ->
		atomic { tokS = HERE; acceptedS = 1; SAY("source: the token is back\n") }
		DIES; TO(FINISHS)
	:: jPhase == DOING && jStep == FINISHS ->
		atomic { clS = BOUND; SAY("source: the claim is the guest's own again\n") }
		DIES;
		atomic { domS = RUNS; SAY("source: the guest is started\n") }
		DIES; TO(CLEANUP)
	:: jPhase == DOING && jStep == CLEANUP -> ask(cleanup_); UNTIL; DIES; atomic { jPhase = DONE }

	/* Undoing. */
	:: jPhase == UNDOING && jStep >= CLAIM && jStep <= HAND ->
		atomic {
			if
			:: tokS == GIVEN -> jPhase = DOING; jStep = HAND; SAY("source: too late, only forward\n"); goto again
			:: else -> keptS = 1
			fi
		}
		DIES;
		atomic { noOffS = 1; if :: tokS == HERE && domS == OFF ->
#ifndef M_POWER_ON_FORGOTTEN
			domS = RUNS
#else
			skip
#endif
			:: else fi }
		DIES;
		ask(rollback_); UNTIL; DIES;
		ask(abort_); UNTIL; DIES;
		atomic { jPhase = UNDONE; SAY("source: it is undone\n") }
	:: jPhase == UNDOING && jStep >= AWAIT ->
		ask(keep_);
		if
		:: ans == NO -> atomic { jPhase = DOING; jStep = HANDD; goto again }
		:: else
		fi;
		UNTIL; DIES;
		ask(on_); UNTIL; DIES;
		atomic { noAwait = 1; if :: clS == ARRIVING && !acceptedS -> clS = HELD :: else fi }
		DIES;
		atomic { jPhase = FINISHED; SAY("source: the revert is undone, it is finished as before\n") }
	:: jPhase == DONE || jPhase == UNDONE -> break
	od
}

proctype world() {
	do
	:: late != 0 -> mtype v; atomic { v = late; late = 0; SAY("a late {verb %e} comes\n", v) } toD ! v, 0
	:: atomic { clD == PENDING && faults > 0 -> faults--; clD = NONE; contextD = 0; SAY("** the claim's lease ends\n") }
	od
}

#ifndef ONLY
#define ONLY 0
#endif

#define law1 (!(tokS == HERE && tokD == HERE) && !(domS == RUNS && domD == RUNS) && (domS != RUNS || tokS == HERE) && (domD != RUNS || tokD == HERE))
#define law2 ((domD != RUNS || clD == ARRIVING || clD == BOUND) && (tokD != HERE || confirmed || clS == HELD || clS == ARRIVING))
#define atSource (tokS == HERE && domS == RUNS && clS == BOUND && tokD != HERE && domD == NONE && clD == NONE && !contextD)
#define atDestination (tokD == HERE && domD == RUNS && clD == BOUND && tokS == NONE && domS == NONE && clS == NONE && !contextD)

proctype monitor() {
	if
#if ONLY == 0 || ONLY == 1
	:: atomic { !law1 -> SAY("LAW 1 IS BROKEN: one owner, and only the owner's copy runs\n"); assert(false) }
#endif
#if ONLY == 0 || ONLY == 2
	:: atomic { !law2 -> SAY("LAW 2 IS BROKEN: a guest is where a claim is, and what it may come back to is kept\n"); assert(false) }
#endif
	:: atomic { timeout -> SAY("all is quiet: source domain %d token %d claim %d, destination domain %d token %d claim %d, phase %d step %d\n", domS, tokS, clS, domD, tokD, clD, jPhase, jStep);
#if ONLY == 0 || ONLY == 12
		if
		:: jPhase == DONE && back && atSource
		:: jPhase == DONE && !back && atDestination
		:: jPhase == UNDONE && atSource
		:: else -> SAY("NOT SETTLED: the guest is not where the journal says, or something is left\n"); assert(false)
		fi;
#endif
		quiet = 1 }
	fi
}

init { atomic {
	if :: unfit = 0 :: unfit = 1 fi;
	run dest(); run source(); run world(); run monitor() } }

#ifdef LIVE
ltl settles { <> quiet }
#endif
