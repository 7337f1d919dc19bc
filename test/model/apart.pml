/*
 * apart.pml: one move of a guest that is off meanwhile, between two hosts that share
 * nothing and never talk, conducted by a third; with what is left to each when that one
 * dies for good. docs/model.md says in words what is here.
 *
 * The guest is at the source S and goes to the destination D under attempt 1; a revert
 * brings it back under attempt 2. The conductor C is neither, and asks both by messages.
 * What is written down durably is one atomic step, and between any two an agent may be
 * killed. At most FAULTS things go wrong in one run; that C is gone for good is one.
 *
 * The laws are in monitor(), at the end. Mutants are compiled in by -DM_NAME.
 */
#ifndef FAULTS
#define FAULTS 2        /* crashes, lost, held and repeated messages, steps that fail, forgeries, silence */
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
/* Records of the instance. */
#define HIDDEN 1
#define SHOWN  2
/* The journal's phases and steps. */
#define DOING    1
#define UNDOING  2
#define DONE     3
#define UNDONE   4
#define FINISHED 6
#define CLAIM   21
#define COPY    22
#define PREP    23
#define POWER   24
#define HOLD    25      /* the disks, and the guest is disconnected */
#define SHIP    26
#define HAND    27      /* the point of no return */
#define ACCEPT  28
#define FINISH  29
#define SHOW    30
#define HIDE    31
#define CONFIRM 41      /* only forward from here */
#define CONFIRMD 42
#define AWAIT   51
#define POWERD  52
#define HANDD   53      /* the revert's */
#define ACCEPTS 54
#define FINISHS 55
#define CLEANUP 56
/* Answers, and what the network does to a request. */
#define YES 1
#define NO  2
#define NIL 3
#define THROUGH 1
#define GONE 2
#define UNANSWERED 3
/* What an operator says when the conductor is gone for good. */
#define ATSOURCE 1
#define ATDEST   2

mtype = {
	claim_, copy_, prep_, ship_, accept_, finish_, show_, uncopy_, abort_, rollback_, offd_, ond_, handd_, keepd_, confirmd_, cleanup_,
	offs_, hold_, hands_, keeps_, ons_, hide_, confirms_, await_, cancel_, accepts_, finishs_
};

byte faults = FAULTS;
bit  unfit;                     /* the guest cannot be started at the destination */

/* The source, durable. */
byte domS = RUNS, tokS = HERE, clS = BOUND, recS = SHOWN;
bit  held, cutoff;              /* its disks are held; it is disconnected */
bit  begun;                     /* by this attempt it was powered off */
bit  alone;                     /* it has decided so, and the guest is not as it was yet */
bit  keptS, noOffS, noHold;     /* no hand-over, power-off, hold of attempt 1 any more */
bit  noAwait, acceptedS;        /* of attempt 2 */
bit  wrote;                     /* somebody else has written to a disk that is held */
/* The destination, durable. */
byte domD = NONE, tokD, clD = NONE, recD = NONE;
bit  noClaim, noCopy, noPrep, acceptedD;
bit  keptD, noOffD;             /* of attempt 2 */
bit  whole, old;                /* the disks have come; of an older state than the source's */
/* The conductor's journal, durable. */
byte jPhase = DOING, jStep = CLAIM;
bit  gone;                      /* it is dead for good */
bit  reverted, back, confirmed;
/* An operator's word, once C is gone. */
byte word;
bit  saidS, saidD;

mtype late;                     /* a verb that is held up */
chan toS = [0] of { mtype, bit };       /* verb; whether somebody waits for the answer */
chan toD = [0] of { mtype, bit };
chan answer = [0] of { byte };
byte broken;
bit  quiet;

#define DIES \
	if \
	:: skip \
	:: atomic { faults > 0 -> faults--; SAY("** the agent of the conductor is killed\n"); goto restart } \
	:: atomic { faults > 0 -> faults--; gone = 1; SAY("** the conductor is gone for good\n"); goto lost } \
	fi
#define SDIES \
	if \
	:: skip \
	:: atomic { faults > 0 -> faults--; SAY("** the agent of the source is killed\n"); goto died } \
	fi
#define DDIES \
	if \
	:: skip \
	:: atomic { faults > 0 -> faults--; SAY("** the agent of the destination is killed\n"); goto died } \
	fi

/* ---------------------------------------------------------------- the source */

proctype source() {
	mtype verb; bit asked; byte ans;
	do
	:: toS ? verb, asked -> ans = NO;
		if
		:: verb == offs_ -> atomic {
			if
#ifdef M_LATE_POWER_OFF_AT_SOURCE
			:: tokS != HERE -> ans = NO
#else
			:: noOffS || tokS != HERE -> ans = NO
#endif
			:: else -> domS = OFF; begun = 1; ans = YES; SAY("source: the guest is powered off\n")
			fi }
		:: verb == hold_ -> atomic {
			if
			:: noHold || tokS != HERE || domS == RUNS -> ans = NO
			:: else -> held = 1; cutoff = 1; ans = YES
			fi }
		:: verb == hands_ -> atomic {
			if
			:: tokS == GIVEN -> ans = YES
			:: tokS == HERE && (keptS || domS == RUNS) -> ans = NO
#ifdef M_SNAPSHOT_NOT_HELD
#else
			:: tokS == HERE && !keptS && domS != RUNS && wrote -> ans = NO
#endif
			:: else -> if :: tokS == HERE && !keptS && domS != RUNS -> tokS = GIVEN; clS = HELD; noOffS = 1; noHold = 1; ans = YES :: else -> ans = NO fi
			fi;
			SAY("source: hands the guest over: {answer %d}\n", ans) }
		:: verb == keeps_ -> atomic {
			if
			:: tokS == GIVEN -> ans = NO
			:: else -> keptS = 1; ans = YES
			fi }
		:: verb == ons_ ->
			atomic { alone = 0; noHold = 1; noOffS = 1; held = 0;
#ifndef M_RECONNECT_FORGOTTEN
				cutoff = 0
#endif
			}
			SDIES;
			atomic { if :: tokS == HERE && clS == BOUND -> domS = RUNS; begun = 0 :: else fi; ans = YES }
		:: verb == hide_ -> atomic { if :: tokS == GIVEN -> recS = HIDDEN :: else fi; ans = YES }
		:: verb == confirms_ -> atomic { if :: tokS == GIVEN -> clS = NONE; domS = NONE; tokS = NONE; recS = NONE; held = 0; cutoff = 0; begun = 0 :: else fi; ans = YES }
		:: verb == await_ -> atomic {
			if
			:: noAwait || clS == NONE -> ans = NO
			:: else -> if :: clS == HELD -> clS = ARRIVING :: else fi; ans = YES
			fi }
		:: verb == cancel_ -> atomic { noAwait = 1; if :: clS == ARRIVING && !acceptedS -> clS = HELD :: else fi; ans = YES }
		:: verb == accepts_ -> atomic {
			if
			:: tokS == HERE -> ans = YES
			:: tokS != HERE && clS != ARRIVING -> ans = NO
			:: else -> tokS = HERE; acceptedS = 1; recS = SHOWN; ans = YES; SAY("source: the token is back\n")
			fi }
		:: verb == finishs_ ->
			if
			:: tokS != HERE || !acceptedS -> ans = NO
			:: else ->
				atomic { clS = BOUND; held = 0; cutoff = 0 }
				SDIES;
				atomic { domS = RUNS; begun = 0; ans = YES; SAY("source: the guest is started\n") }
			fi
		fi;
		SAY("source: {verb %e}: {answer %d}\n", verb, ans);
		if :: asked -> answer ! ans :: else fi;
		goto next;
died:		if :: asked -> answer ! NIL :: else fi;
next:		atomic { verb = 0; asked = 0; ans = 0 }

	/* Nothing is heard of the conductor: the source decides alone, as long as it has the guest. */
#ifdef M_SILENCE_DECIDES_ALWAYS
	:: atomic { begun && (gone || faults > 0) && !keptS ->
#else
	:: atomic { begun && (gone || faults > 0) && tokS == HERE && clS == BOUND && !keptS ->
#endif
		if :: gone :: else -> faults-- fi;
#ifndef M_SILENCE_IS_NOT_WRITTEN
		keptS = 1;
#endif
		alone = 1; noOffS = 1; noHold = 1; SAY("source: decides alone, the guest stays\n") }
	:: atomic { alone ->
#ifdef M_SILENCE_DECIDES_ALWAYS
		tokS = HERE; clS = BOUND;
#endif
		alone = 0; held = 0; cutoff = 0; domS = RUNS; begun = 0; SAY("source: the guest runs again\n") }

	/* An operator's word, where the conductor is gone for good. The one at the host that is to give
	   way comes first: there the other's message is refused from then on. */
	:: atomic { word == ATSOURCE && saidD && !saidS ->
		saidS = 1; alone = 0; keptS = 1; noOffS = 1; noHold = 1; held = 0; cutoff = 0; begun = 0;
		tokS = HERE; clS = BOUND; domS = RUNS; recS = SHOWN; SAY("source: an operator says that the guest is here\n") }
	:: atomic { word == ATDEST && !saidS ->
		saidS = 1; alone = 0; keptS = 1; noOffS = 1; noHold = 1; held = 0; cutoff = 0; begun = 0;
		tokS = NONE; clS = NONE; domS = NONE; recS = NONE; SAY("source: an operator says that the guest is there\n") }
	od
}

/* ---------------------------------------------------------- the destination */

proctype dest() {
	mtype verb; bit asked; byte ans;
	do
	:: toD ? verb, asked -> ans = NO;
		if
		:: verb == claim_ -> atomic {
			if
			:: noClaim || acceptedD -> ans = NO
			:: else -> if :: clD == NONE -> clD = PENDING :: else fi; ans = YES
			fi }
		:: verb == copy_ -> atomic {
			if
#ifdef M_LATE_COPY
			:: tokD == HERE -> ans = NO
#else
			:: noCopy || clD == NONE || acceptedD -> ans = NO
#endif
			:: else -> if :: recD == NONE -> recD = HIDDEN :: else fi; ans = YES
			fi }
		:: verb == uncopy_ -> atomic {
			if
			:: tokD == HERE -> ans = NO
			:: else -> noCopy = 1; recD = NONE; ans = YES
			fi }
		:: verb == abort_ -> atomic {
			if
			:: tokD == HERE -> ans = NO
			:: else -> noClaim = 1; clD = NONE; ans = YES
			fi }
		:: verb == prep_ -> atomic {
			if
			:: noPrep || (clD != PENDING && clD != ARRIVING) -> ans = NO
			:: else -> clD = ARRIVING; ans = YES
			fi }
		:: verb == ship_ -> atomic {
			if
			:: clD != ARRIVING || noPrep -> ans = NO
			:: else -> whole = 1; old = wrote; ans = YES
			fi }
		:: verb == rollback_ -> atomic {
			if
			:: tokD == HERE -> ans = NO
			:: else -> noPrep = 1; whole = 0; ans = YES
			fi }
		:: verb == accept_ -> atomic {
			if
			:: tokD == HERE -> ans = YES
#ifdef M_SEAL_NOT_VERIFIED
			:: tokD == GIVEN || clD != ARRIVING -> ans = NO
#else
			/* Only the source's own seal says that its token has left. */
			:: tokD == GIVEN || clD != ARRIVING || (tokS != GIVEN && tokD != HERE) -> ans = NO
#endif
			:: else -> tokD = HERE; acceptedD = 1; ans = YES; SAY("destination: the token is here\n")
			fi }
		:: verb == finish_ ->
			if
			:: tokD != HERE -> ans = NO
			:: else -> if
				:: unfit -> ans = NO
				:: !unfit ->
					atomic { if :: clD == ARRIVING || clD == HELD -> domD = RUNS :: else fi; SAY("destination: the guest is started\n") }
					DDIES;
					atomic { if :: clD == ARRIVING -> clD = BOUND :: else fi; ans = YES }
				fi
			fi
		:: verb == show_ -> atomic { if :: tokD == HERE -> recD = SHOWN; ans = YES :: else -> ans = NO fi }
		:: verb == offd_ -> atomic {
			if
			:: noOffD || tokD != HERE -> ans = NO
			:: else -> if :: domD == RUNS -> domD = OFF :: else fi; ans = YES; SAY("destination: the guest is powered off\n")
			fi }
		:: verb == ond_ ->
			atomic { noOffD = 1 }
			DDIES;
			atomic { if :: tokD == HERE && !unfit -> domD = RUNS :: else fi; ans = YES }
		:: verb == handd_ -> atomic {
			if
			:: tokD == GIVEN -> ans = YES
			:: tokD != HERE || domD == RUNS || keptD -> ans = NO
			:: else -> tokD = GIVEN; clD = HELD; ans = YES; SAY("destination: hands the guest back\n")
			fi }
		:: verb == keepd_ -> atomic {
			if
			:: tokD == GIVEN -> ans = NO
			:: else -> keptD = 1; ans = YES
			fi }
		:: verb == confirmd_ -> atomic { ans = YES }
		:: verb == cleanup_ -> atomic {
			if
			:: tokD == HERE -> ans = NO
			:: else -> domD = NONE; clD = NONE; recD = NONE; tokD = NONE; noClaim = 1; noPrep = 1; noCopy = 1; whole = 0; ans = YES
			fi }
		fi;
		SAY("destination: {verb %e}: {answer %d}\n", verb, ans);
		if :: asked -> answer ! ans :: else fi;
		goto next;
died:		if :: asked -> answer ! NIL :: else fi;
next:		atomic { verb = 0; asked = 0; ans = 0 }

	:: atomic { word == ATSOURCE && !saidD ->
		saidD = 1; noClaim = 1; noPrep = 1; noCopy = 1; whole = 0;
		domD = NONE; tokD = NONE; clD = NONE; recD = NONE; SAY("destination: an operator says that the guest is at the source\n") }
	:: atomic { word == ATDEST && saidS && !saidD ->
		saidD = 1; keptD = 1; noOffD = 1; tokD = HERE; domD = RUNS; clD = BOUND; recD = SHOWN; SAY("destination: an operator says that the guest is here\n") }
	od
}

/* ------------------------------------------------------------- the conductor */

/* ask gives a verb to a host, as the network lets it through. */
inline ask(to, v) {
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
	:: else -> to ! v, 1; answer ? ans; if :: way == UNANSWERED -> ans = NIL :: else fi
	fi;
	way = 0
}

/* TO is the journal: the next step is durable. */
#define TO(step) atomic { jStep = step; ans = 0; SAY("conductor: journal: step %d\n", jStep) }
/* A step that was refused, or that somebody gives up, is undone, and all before it. */
#define FAILS if :: ans == NO -> jPhase = UNDOING; goto again :: else fi
#define GIVESUP if :: skip :: atomic { faults > 0 -> faults--; jPhase = UNDOING; SAY("** the step fails\n"); goto again } fi
#define UNTIL if :: ans == YES -> skip :: else -> goto again fi

proctype conductor() {
	byte ans, way;
restart: skip;
again:	atomic { ans = 0; way = 0 }
	do
	:: jPhase == DOING && jStep == CLAIM -> ask(toD, claim_); FAILS; UNTIL; DIES; TO(COPY)
	:: jPhase == DOING && jStep == COPY -> ask(toD, copy_); FAILS; UNTIL; DIES; TO(PREP)
	:: jPhase == DOING && jStep == PREP -> GIVESUP; ask(toD, prep_); FAILS; UNTIL; DIES; TO(POWER)
	:: jPhase == DOING && jStep == POWER -> ask(toS, offs_); FAILS; UNTIL; DIES; TO(HOLD)
	:: jPhase == DOING && jStep == HOLD -> ask(toS, hold_); FAILS; UNTIL; DIES; TO(SHIP)
	:: jPhase == DOING && jStep == SHIP -> GIVESUP; ask(toD, ship_); FAILS; UNTIL; DIES; TO(HAND)
	:: jPhase == DOING && jStep == HAND -> ask(toS, hands_); FAILS; UNTIL; DIES; TO(ACCEPT)
	:: jPhase == DOING && jStep == ACCEPT -> ask(toD, accept_); UNTIL; DIES; TO(FINISH)
	:: jPhase == DOING && jStep == FINISH -> ask(toD, finish_);
		if
		:: ans == YES -> DIES; TO(SHOW)
		:: ans == NO -> DIES; atomic { reverted = 1; jStep = AWAIT; SAY("conductor: the guest cannot live there, it is taken back\n") }
		:: else
		fi
	:: jPhase == DOING && jStep == SHOW -> ask(toD, show_); UNTIL; DIES; TO(HIDE)
	:: jPhase == DOING && jStep == HIDE -> ask(toS, hide_); UNTIL; DIES; atomic { jPhase = FINISHED; SAY("conductor: it is finished\n") }

	/* Somebody's word. */
	:: atomic { jPhase == FINISHED -> jPhase = DOING; jStep = CONFIRM; confirmed = 1; SAY("conductor: it is confirmed\n") }
	:: atomic { jPhase == FINISHED && !reverted -> jPhase = DOING; jStep = AWAIT; reverted = 1; SAY("conductor: it is to be reverted\n") }

	:: jPhase == DOING && jStep == CONFIRM -> ask(toS, confirms_); UNTIL; DIES; TO(CONFIRMD)
	:: jPhase == DOING && jStep == CONFIRMD -> ask(toD, confirmd_); UNTIL; DIES; atomic { jPhase = DONE }

	:: jPhase == DOING && jStep == AWAIT -> ask(toS, await_); FAILS; UNTIL; DIES; TO(POWERD)
	:: jPhase == DOING && jStep == POWERD -> if :: unfit :: else -> GIVESUP fi; ask(toD, offd_); FAILS; UNTIL; DIES; TO(HANDD)
	:: jPhase == DOING && jStep == HANDD -> ask(toD, handd_); FAILS; UNTIL; DIES; atomic { back = 1; jStep = ACCEPTS }
	:: jPhase == DOING && jStep == ACCEPTS -> ask(toS, accepts_); UNTIL; DIES; TO(FINISHS)
	:: jPhase == DOING && jStep == FINISHS -> ask(toS, finishs_); UNTIL; DIES; TO(CLEANUP)
	:: jPhase == DOING && jStep == CLEANUP -> ask(toD, cleanup_); UNTIL; DIES; atomic { jPhase = DONE }

	/* Undoing. */
	:: jPhase == UNDOING && jStep >= CLAIM && jStep <= HAND ->
		ask(toS, keeps_);
		if
		:: ans == NO -> atomic { jPhase = DOING; jStep = HAND; SAY("conductor: too late, only forward\n"); goto again }
		:: else
		fi;
		UNTIL; DIES;
		ask(toS, ons_); UNTIL; DIES;
		ask(toD, rollback_); UNTIL; DIES;
#ifndef M_COPY_LEFT
		ask(toD, uncopy_); UNTIL; DIES;
#endif
		ask(toD, abort_); UNTIL; DIES;
		atomic { jPhase = UNDONE; SAY("conductor: it is undone\n") }
	:: jPhase == UNDOING && jStep >= AWAIT ->
		ask(toD, keepd_);
		if
		:: ans == NO -> atomic { jPhase = DOING; jStep = HANDD; goto again }
		:: else
		fi;
		UNTIL; DIES;
		ask(toD, ond_); UNTIL; DIES;
		ask(toS, cancel_); UNTIL; DIES;
		atomic { jPhase = FINISHED; SAY("conductor: the revert is undone, it is finished as before\n") }
	:: jPhase == DONE || jPhase == UNDONE -> break
	od;
lost:	skip
}

/* An operator, once the conductor is gone: he looks at both hosts, and where the guest's token
   is he says so; where it is at neither, either is right. */
proctype operator() {
	if
	:: atomic { gone && tokS == HERE && tokD != HERE -> word = ATSOURCE }
	:: atomic { gone && tokD == HERE && tokS != HERE -> if :: unfit -> word = ATSOURCE :: else -> word = ATDEST fi }
	:: atomic { gone && tokD != HERE && tokS != HERE && clD != NONE && whole -> if :: unfit -> skip :: else -> word = ATDEST fi; if :: word == 0 -> word = ATSOURCE :: else fi }
	:: atomic { gone && tokD != HERE && tokS != HERE && clS != NONE -> word = ATSOURCE }
	:: atomic { jPhase == DONE || jPhase == UNDONE }
	fi
}

#define toSource(v) (v == offs_ || v == hold_ || v == hands_ || v == keeps_ || v == ons_ || v == hide_ || v == confirms_ || v == await_ || v == cancel_ || v == accepts_ || v == finishs_)

proctype world() {
	mtype v;
	do
	:: late != 0 ->
		atomic { v = late; late = 0; SAY("a late {verb %e} comes\n", v) }
		if :: toSource(v) -> toS ! v, 0 :: else -> toD ! v, 0 fi;
		v = 0
	:: atomic { clD == PENDING && faults > 0 -> faults--; clD = NONE; recD = NONE; SAY("** the claim's lease ends\n") }
	:: atomic { clD == PENDING && gone -> clD = NONE; recD = NONE; SAY("the claim's lease ends\n") }
	/* A conductor that was taken over says what it likes. */
	:: atomic { faults > 0 -> faults--; SAY("** a commit is forged\n") } toD ! accept_, 0
	:: atomic { held && domS != RUNS && !wrote && tokS == HERE && faults > 0 -> faults--; wrote = 1; SAY("** somebody writes to a disk of the guest\n") }
	od
}

#ifndef ONLY
#define ONLY 0
#endif

#define law1 (!(tokS == HERE && tokD == HERE) && !(domS == RUNS && domD == RUNS) && (domS != RUNS || tokS == HERE) && (domD != RUNS || tokD == HERE))
#define law2 ((domD != RUNS || clD == ARRIVING || clD == BOUND) && (tokD != HERE || confirmed || clS == HELD || clS == ARRIVING || word == ATDEST))
/* The guest starts nowhere from disks that are not its last, and not without its networks. */
#define law6 ((domD != RUNS || (whole && !(old != wrote))) && (domS != RUNS || (!cutoff && !held)))
#define nothingS (tokS == NONE && domS == NONE && clS == NONE && recS == NONE)
#define nothingD (tokD != HERE && domD == NONE && clD == NONE && recD == NONE)
#define atSource (tokS == HERE && domS == RUNS && clS == BOUND && recS == SHOWN && nothingD && !held && !cutoff)
#define atDestination (tokD == HERE && domD == RUNS && clD == BOUND && recD == SHOWN && nothingS)

proctype monitor() {
	if
#if ONLY == 0 || ONLY == 1
	:: atomic { !law1 -> SAY("LAW 1 IS BROKEN: one owner, and only the owner's copy runs\n"); assert(false) }
#endif
#if ONLY == 0 || ONLY == 2
	:: atomic { !law2 -> SAY("LAW 2 IS BROKEN: a guest is where a claim is, and what it may come back to is kept\n"); assert(false) }
#endif
#if ONLY == 0 || ONLY == 6
	:: atomic { !law6 -> SAY("LAW 6 IS BROKEN: a guest runs with its own last disks and with its networks\n"); assert(false) }
#endif
	:: atomic { timeout -> SAY("all is quiet: source domain %d token %d claim %d record %d, destination domain %d token %d claim %d record %d, phase %d step %d\n", domS, tokS, clS, recS, domD, tokD, clD, recD, jPhase, jStep);
#if ONLY == 0 || ONLY == 12
		if
		:: gone && word == ATSOURCE && atSource
		:: gone && word == ATDEST && atDestination
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
	run dest(); run source(); run conductor(); run operator(); run world(); run monitor() } }

#ifdef LIVE
ltl settles { <> quiet }
#endif
