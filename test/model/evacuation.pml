/*
 * evacuation.pml: a guest of a dead host, two others that would each take it, and the dead
 * one that comes back. docs/model.md says in words what is here.
 *
 * The guest is at the source S (host 0). Each of the hosts 1 and 2 conducts an evacuation of it
 * to itself. Between all of them are the fleet's records, whose commits hold only while what was
 * read still is; a commit may be lost, land without an answer, or land late. S is fenced,
 * loses its power, is cut off from the records, and boots again.
 *
 * The laws are in monitor(), at the end. Mutants are compiled in by -DM_NAME.
 */
#ifndef FAULTS
#define FAULTS 1        /* crashes, lost, held and unanswered commits, steps that fail, cuts */
#endif
#ifndef BOOTS
#define BOOTS 2         /* of S in all */
#endif

#define SAY printf

/* Domains, tokens and claims. */
#define NONE 0
#define RUNS 1
#define HERE 1
#define PENDING  1
#define ARRIVING 2
#define BOUND    3
/* What a host's own records in its ledger say of the journal of its evacuation. */
#define DOING    1
#define UNDOING  2
#define DONE     3
#define UNDONE   4
#define LOST    61
#define CLAIM   62
#define PREP    63
#define TAKE    64      /* the point of no return */
#define ACCEPT  65
#define FINISH  66
/* Answers, and what is asked of the records. */
#define YES 1
#define NO  2
#define NIL 3
#define TAKEOVER 1
#define GIVEUP   2
#define DEATH    3
#define RETURN   4

byte faults = FAULTS;

/* The fleet's records, durable. A revision is another after every write. */
byte recHost, recEpoch = 1, recRev = 1;         /* instances/G; the host is who has its token */
bit  death; byte deathRev = 1;                  /* deaths/S */
byte hostRev = 1;                               /* hosts/S */
bit  fences = 1;                                /* it says there that it fences itself */
bit  alive = 1;                                 /* alive/S, under its lease */
bit  evac[3];                                   /* evacuated/S/migration of a host */

/* Hosts: the source's are those of index 0. */
byte dom[3], tok[3], epoch[3], claim[3];
bit  half[3];                   /* what the migration of a host holds of S in Placement */
bit  disk = 1;                  /* the guest's, which all share */
bit  power = 1, cut;            /* S has power; it is cut off from the records */
bit  armed = 1;                 /* its watchdog, in this boot */
byte boot = 1;
byte asked = 1, confirmed = 1;  /* S, durable: the boot of its last Return, and that in which it has looked */

/* The journals, durable: what was read is remembered. */
byte phase[3], step[3], readRec[3], readDeath[3], readEpoch[3];

/* A commit that is held up. */
byte lateWhat, lateBy, lateRec, lateDeath, lateHost, lateBoot;
bit  quiet;

/* ------------------------------------------------------------ the fleet's records */

#if defined(M_TAKE_OVER_AFTER_RETURN) || defined(M_DEATH_NOT_CHECKED)
#define diedAsRead(d) true
#else
#define diedAsRead(d) (death && deathRev == d)
#endif
#ifdef M_DEATH_OF_AN_EARLIER_BOOT
#define bootAsRead(h) true
#else
#define bootAsRead(h) (hostRev == h)
#endif

/* commit is one write, done where its conditions hold. */
inline commit(what, by, r, d, h, b) {
	if
	:: what == TAKEOVER && recRev == r && diedAsRead(d) ->
		recHost = by; recEpoch++; recRev++; evac[by] = 1; ok = YES; SAY("records: host %d has the token\n", by)
	:: what == GIVEUP && recRev == r -> recRev++; ok = YES
	:: what == DEATH && !death && bootAsRead(h) -> death = 1; deathRev++; ok = YES; SAY("records: the source is dead\n")
	:: what == RETURN -> if :: death -> death = 0; deathRev++ :: else fi; hostRev++; alive = 1; ok = YES;
#ifndef M_SELF_FENCE_OF_AN_EARLIER_BOOT
		fences = 0;
#endif
		 SAY("records: the source is back in boot %d\n", b)
	:: else -> ok = NO
	fi
}

/* ask is a commit as the network lets it through. */
inline ask(what, by, r, d, h, b) {
	atomic {
		ok = NIL;
		if
		:: commit(what, by, r, d, h, b)
		:: faults > 0 -> faults--; SAY("** a commit of host %d is lost\n", by)
		:: faults > 0 -> faults--; commit(what, by, r, d, h, b); ok = NIL; SAY("** the answer to a commit of host %d is lost\n", by)
		:: faults > 0 && lateWhat == 0 -> faults--; lateWhat = what; lateBy = by; lateRec = r; lateDeath = d; lateHost = h; lateBoot = b; SAY("** a commit of host %d is held up\n", by)
		fi
	}
}

/* ------------------------------------------------------ an evacuation, and where to */

#define DIES \
	if \
	:: skip \
	:: atomic { faults > 0 -> faults--; SAY("** the agent of host %d is killed\n", me); goto again } \
	fi
#define TO(s) atomic { step[me] = s; ok = 0; SAY("host %d: journal: {step %d}\n", me, s) }
#define GIVESUP if :: skip :: atomic { faults > 0 -> faults--; phase[me] = UNDOING; SAY("** the step fails\n"); goto again } fi

proctype evacuation(byte me) {
	byte ok;
again:	atomic { ok = 0 }
	do
	:: phase[me] == DOING && step[me] == LOST -> atomic {
		if
#ifdef M_DEATH_NOT_CHECKED
		:: recHost == 0 ->
#else
		:: recHost == 0 && death ->
#endif
			readRec[me] = recRev; readEpoch[me] = recEpoch; readDeath[me] = deathRev; step[me] = CLAIM; SAY("host %d: the guest is lost with its host\n", me)
		:: recHost != 0 -> phase[me] = UNDONE; SAY("host %d: the guest is elsewhere\n", me)
		:: phase[me] = UNDONE; SAY("host %d: nobody evacuates\n", me)
		fi }
	:: phase[me] == DOING && step[me] == CLAIM -> atomic { claim[me] = PENDING }; DIES; TO(PREP)
	:: phase[me] == DOING && step[me] == PREP -> GIVESUP; atomic { claim[me] = ARRIVING; half[me] = 1 }; DIES; TO(TAKE)
	:: phase[me] == DOING && step[me] == TAKE ->
		GIVESUP;
		if
		:: atomic { recHost == me -> ok = YES }        /* it was done before */
		:: atomic { recHost != me } -> ask(TAKEOVER, me, readRec[me], readDeath[me], 0, 0)
		fi;
		if
		:: ok == NO && recHost != me -> phase[me] = UNDOING
		:: ok == YES -> DIES; TO(ACCEPT)
		:: else -> skip
		fi
	:: phase[me] == DOING && step[me] == ACCEPT -> atomic {
		/* By the records alone. */
		if
		:: recHost == me -> tok[me] = HERE; epoch[me] = recEpoch; SAY("host %d: the token is here\n", me)
		:: else
		fi }; DIES; TO(FINISH)
	:: phase[me] == DOING && step[me] == FINISH ->
		if
		:: atomic { tok[me] == HERE && claim[me] == ARRIVING && disk -> dom[me] = RUNS; SAY("host %d: the guest is started\n", me) }
		:: else
		fi;
		DIES;
		atomic { if :: claim[me] == ARRIVING -> claim[me] = BOUND :: else fi; phase[me] = DONE; SAY("host %d: it is done\n", me) }

	:: phase[me] == UNDOING && step[me] == TAKE ->
#ifndef M_GIVE_UP_FORGOTTEN
		if
		:: atomic { recHost == me -> phase[me] = DOING; step[me] = ACCEPT; SAY("host %d: too late, only forward\n", me); goto again }
		:: atomic { recHost != me && recRev != readRec[me] }    /* nothing that was sent can hold any more */
		:: atomic { recHost != me && recRev == readRec[me] } -> ask(GIVEUP, me, readRec[me], 0, 0, 0); if :: ok == YES :: else -> goto again fi
		fi;
#endif
		DIES;
		atomic { step[me] = PREP }
	:: phase[me] == UNDOING && step[me] < TAKE -> atomic { claim[me] = NONE; half[me] = 0 }; DIES; atomic { phase[me] = UNDONE; SAY("host %d: it is undone\n", me) }
	:: phase[me] == DONE || phase[me] == UNDONE -> break
	od
}

/* ----------------------------------------------------------------------- the source */

/* How it dies and comes back. */
proctype machine() {
	do
	:: atomic { power && faults > 0 -> faults--; power = 0; armed = 0; dom[0] = NONE; SAY("** the source loses its power\n") }
	:: atomic { !power && boot < BOOTS -> power = 1; boot++; cut = 0; SAY("the source boots: boot %d\n", boot) }
	:: atomic { power && !cut && faults > 0 -> faults--; cut = 1; SAY("** the source is cut off\n") }
	:: atomic { cut -> cut = 0; SAY("the source is not cut off any more\n") }
	/* It is not fed once its lease cannot be renewed, and resets the host before that ends. */
	:: atomic { power && cut && armed -> power = 0; armed = 0; dom[0] = NONE; SAY("the watchdog resets the source\n") }
#ifdef M_FED_PAST_THE_LEASE
	:: atomic { alive && (!power || cut) -> alive = 0; SAY("the lease of the source ends\n") }
#else
	:: atomic { alive && (!power || cut && !armed) -> alive = 0; SAY("the lease of the source ends\n") }
#endif
	od
}

/* The agent that began is there still. */
#define ON (power && boot == mine)

proctype source() {
	byte ok, mine; bit way;
	do
	:: atomic { power && !cut && asked == boot && !alive && !death -> alive = 1; SAY("source: renews its lease\n") }
	/* First the watchdog, then the word, and that while there is a lease to go by. */
	:: atomic { power && confirmed == boot && !armed -> armed = 1 }
#ifdef M_SELF_FENCE_WITHOUT_A_LEASE
	:: atomic { power && !cut && armed && confirmed == boot && !fences ->
#else
	:: atomic { power && !cut && armed && confirmed == boot && !fences && alive ->
#endif
		 fences = 1; hostRev++; SAY("source: says that it fences itself\n") }
	:: atomic { power && !cut && confirmed != boot -> mine = boot };
#ifdef M_LOOKS_BEFORE_RETURN
		atomic { way = (recHost != 0 && recEpoch > epoch[0]) }
#endif
		if
		:: asked == boot
		:: asked != boot -> ask(RETURN, 0, 0, 0, 0, mine); if :: atomic { ok == YES && ON -> asked = boot } :: else -> goto next fi
		fi;
#ifdef M_RECORD_OVERWRITTEN
		atomic { if :: tok[0] == HERE -> recHost = 0; recRev++; SAY("source: writes its record\n") :: else fi }
#endif
#ifndef M_LOOKS_BEFORE_RETURN
		atomic { way = (recHost != 0 && recEpoch > epoch[0]) };
#endif
		if
		:: way -> atomic { if :: ON -> dom[0] = NONE; tok[0] = NONE; SAY("source: gives way\n") :: else -> goto next fi };
			atomic { if :: ON -> claim[0] = NONE;
#ifdef M_SHARED_DISK_REMOVED
				disk = 0;
#endif
				SAY("source: it is cleaned up\n") :: else -> goto next fi };
#ifndef M_HALF_NOT_GIVEN_UP
			atomic { if :: ON -> half[recHost] = 0 :: else -> goto next fi };
#endif
			atomic { if :: ON -> evac[recHost] = 0; SAY("source: the migration's half is given up\n") :: else -> goto next fi }
		:: else
		fi;
		atomic { if :: ON && asked == boot -> confirmed = boot; SAY("source: boot %d is confirmed\n", boot) :: else fi }
next:		atomic { ok = 0; way = 0; mine = 0 }
#ifdef M_START_BEFORE_CONFIRMATION
	:: atomic { power && tok[0] == HERE && dom[0] == NONE && disk ->
#else
	:: atomic { power && confirmed == boot && tok[0] == HERE && dom[0] == NONE && disk ->
#endif
		dom[0] = RUNS; SAY("source: the guest is started\n") }
	od
}

/* Somebody who fences the source, or has its lease for a proof. */
proctype fencer() {
	byte ok, h, tries;
	do
	:: tries < 1 ->
		tries++;
		h = hostRev;
		if
		:: atomic { power = 0; armed = 0; dom[0] = NONE; SAY("the source is fenced\n") }; ask(DEATH, 3, 0, 0, h, 0)
		:: atomic { !alive && fences } -> atomic { if :: !alive && hostRev == h && !death -> death = 1; deathRev++; SAY("records: the source is dead, its lease is over\n") :: else fi }
		:: skip
		fi
	:: break
	od
}

proctype network() {
	byte ok;
	do
	:: atomic { lateWhat != 0 -> SAY("a late commit of host %d comes\n", lateBy); commit(lateWhat, lateBy, lateRec, lateDeath, lateHost, lateBoot); lateWhat = 0; lateBy = 0; lateRec = 0; lateDeath = 0; lateHost = 0; lateBoot = 0; ok = 0 }
	od
}

#ifndef ONLY
#define ONLY 0
#endif

#define law1 (dom[0] + dom[1] + dom[2] <= 1)
#define law2 ((!dom[1] || claim[1] >= ARRIVING) && (!dom[2] || claim[2] >= ARRIVING) && (!dom[0] || claim[0]))
#define law6 (disk)
#define nothing(n) (tok[n] == NONE && dom[n] == NONE && claim[n] == NONE)
#define livesAt(n, a, b) (tok[n] == HERE && dom[n] == RUNS && claim[n] == BOUND && recHost == n && nothing(b) && (nothing(a) || (a == 0 && !power)))

proctype monitor() {
	if
#if ONLY == 0 || ONLY == 1
	:: atomic { !law1 -> SAY("LAW 1 IS BROKEN: never two running copies\n"); assert(false) }
#endif
#if ONLY == 0 || ONLY == 2
	:: atomic { !law2 -> SAY("LAW 2 IS BROKEN: a guest is where a claim is\n"); assert(false) }
#endif
#if ONLY == 0 || ONLY == 6
	:: atomic { !law6 -> SAY("LAW 6 IS BROKEN: the disk of a guest that lives is removed\n"); assert(false) }
#endif
	:: atomic { timeout -> SAY("all is quiet: tokens %d %d %d, domains %d %d %d, record at %d, power %d\n", tok[0], tok[1], tok[2], dom[0], dom[1], dom[2], recHost, power);
#if ONLY == 0 || ONLY == 12
		if
		:: livesAt(0, 1, 2) && !half[1] && !half[2] && !evac[1] && !evac[2] && power && !death
		:: recHost == 0 && !power && tok[0] == HERE && nothing(1) && nothing(2) && !half[1] && !half[2]         /* it waits for its host */
		:: livesAt(1, 0, 2) && !half[2] && !evac[2] && (!power || (!half[1] && !evac[1] && !death))
		:: livesAt(2, 0, 1) && !half[1] && !evac[1] && (!power || (!half[2] && !evac[2] && !death))
		:: else -> SAY("NOT SETTLED: the guest is not where the records say, or something is left\n"); assert(false)
		fi;
#endif
		quiet = 1 }
	fi
}

init { atomic {
	dom[0] = RUNS; tok[0] = HERE; epoch[0] = 1; claim[0] = BOUND;
	phase[1] = DOING; step[1] = LOST; phase[2] = DOING; step[2] = LOST;
	run machine(); run source(); run fencer(); run evacuation(1); run evacuation(2); run network(); run monitor() } }

#ifdef LIVE
ltl settles { <> quiet }
#endif
