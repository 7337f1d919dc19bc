/*
 * ledger.pml: the claim lock and its shared commit, as a state machine that spin
 * can search to the end. Two moves want the one thing that a host has left (a
 * pinned CPU, a page, a device). What is decided under the lock is one atomic
 * step; the commit is another, outside the lock, and takes along whatever was
 * enqueued until then. It may fail, and the agent may be killed at any moment.
 *
 * The laws are in monitor(). Mutants: look for `#ifdef M_`.
 */
#ifndef FAULTS
#define FAULTS 3        /* commits that fail and kills of the agent, in all */
#endif
#ifndef ROUNDS
#define ROUNDS 2        /* times that each move claims and releases */
#endif
#define SAY printf

/* A claim as memory has it. Anything but FREE counts as used. */
#define FREE 0
#define TAKEN 1         /* reserved: its commit is under way */
#define HELD 2
#define GOING 3         /* its release is under way */

#define PUT 1
#define DEL 2
#define OK 1
#define FAILED 2
#define KILLED 3

byte faults = FAULTS;
byte memory[2];         /* the tracker's; lost when the agent dies */
byte queue[2];          /* enqueued and not committed; lost too */
byte commit[2];         /* in the transaction that is being written; lost too */
byte answer[2];         /* what the commit came to */
bit  disk[2];           /* the ledger: durable */
bit  told[2];           /* the claim was answered, and its holder relies on it */
bit  quiet;

proctype move(byte me) {
	byte round;
	do
	:: round == ROUNDS -> break
	:: round < ROUNDS && memory[me] == FREE ->
		/* Tracker.Claim: fit and reserve under the lock. */
		if
		:: atomic { memory[0] == FREE && memory[1] == FREE ->
			memory[me] = TAKEN; queue[me] = PUT; answer[me] = 0; SAY("move %d: reserved, its record is enqueued\n", me) }
		:: round == ROUNDS
		fi;
#ifdef M_ANSWER_BEFORE_COMMIT
		atomic { told[me] = 1; SAY("move %d: is told of its claim\n", me) }
#endif
		atomic {
			answer[me] != 0;
			if
			:: answer[me] == OK -> memory[me] = HELD; told[me] = 1; SAY("move %d: is told of its claim\n", me)
#ifdef M_FAILED_COMMIT_KEEPS_THE_RESERVATION
			:: answer[me] == FAILED -> round = ROUNDS; SAY("move %d: refused, the reservation stays\n", me)
#else
			:: answer[me] == FAILED -> memory[me] = FREE; SAY("move %d: refused, the reservation is taken back\n", me)
#endif
			:: answer[me] == KILLED -> SAY("move %d: no answer came\n", me)
			fi;
			answer[me] = 0
		}
		round = round + (round < ROUNDS)
	:: memory[me] == HELD ->
		/* Tracker.Release and Abort. */
		atomic {
			told[me] = 0;
#ifdef M_FREED_BEFORE_COMMIT
			memory[me] = FREE;
#else
			memory[me] = GOING;
#endif
			queue[me] = DEL; answer[me] = 0; SAY("move %d: its release is enqueued\n", me)
		}
		atomic {
			answer[me] != 0;
#ifdef M_FREED_BEFORE_COMMIT
			if :: answer[me] == FAILED && memory[me] == FREE -> memory[me] = HELD :: else fi;
#else
			if
			:: answer[me] == OK -> memory[me] = FREE; SAY("move %d: its release is durable\n", me)
			:: answer[me] == FAILED -> memory[me] = HELD; SAY("move %d: its release failed, the claim stands\n", me)
			:: answer[me] == KILLED -> SAY("move %d: no answer came\n", me)
			fi;
#endif
			answer[me] = 0
		}
	od
}

proctype store() {
	do
	/* One transaction for all that is enqueued. */
	:: atomic { (queue[0] || queue[1]) && !commit[0] && !commit[1] ->
		commit[0] = queue[0]; commit[1] = queue[1]; queue[0] = 0; queue[1] = 0; SAY("store: a transaction begins\n") }
	:: atomic { commit[0] || commit[1] ->
		if
		:: if :: commit[0] -> disk[0] = (commit[0] == PUT); answer[0] = OK :: else fi;
		   if :: commit[1] -> disk[1] = (commit[1] == PUT); answer[1] = OK :: else fi;
		   SAY("store: the transaction is on disk: %d %d\n", disk[0], disk[1])
		:: faults > 0 -> faults--;
		   if :: commit[0] -> answer[0] = FAILED :: else fi;
		   if :: commit[1] -> answer[1] = FAILED :: else fi;
		   SAY("** store: the transaction fails\n")
		fi;
		commit[0] = 0; commit[1] = 0 }
	:: atomic { faults > 0 -> faults--;
		if :: memory[0] == TAKEN || memory[0] == GOING || queue[0] || commit[0] -> answer[0] = KILLED :: else fi;
		if :: memory[1] == TAKEN || memory[1] == GOING || queue[1] || commit[1] -> answer[1] = KILLED :: else fi;
		queue[0] = 0; queue[1] = 0; commit[0] = 0; commit[1] = 0;
		/* A new agent reads its ledger. */
		memory[0] = (disk[0] -> HELD : FREE); memory[1] = (disk[1] -> HELD : FREE);
		SAY("** the agent is killed; a new one reads %d %d\n", disk[0], disk[1]) }
	od
}

#ifndef ONLY
#define ONLY 0
#endif

#define law3 (!(told[0] && !disk[0]) && !(told[1] && !disk[1]))
#define law8 (!(disk[0] && disk[1]))

proctype monitor() {
	if
#if ONLY == 0 || ONLY == 3
	:: atomic { !law3 -> SAY("LAW 3 IS BROKEN: a claim is durable before anybody is told of it\n"); assert(false) }
#endif
#if ONLY == 0 || ONLY == 8
	:: atomic { !law8 -> SAY("LAW 8 IS BROKEN: what is freed is reused only once its release is durable\n"); assert(false) }
#endif
	:: atomic { timeout -> SAY("all is quiet: memory %d %d, disk %d %d\n", memory[0], memory[1], disk[0], disk[1]);
#if ONLY == 0 || ONLY == 12
		if
		:: (memory[0] == HELD) == disk[0] && (memory[1] == HELD) == disk[1] && memory[0] != TAKEN && memory[1] != TAKEN && memory[0] != GOING && memory[1] != GOING
		:: else -> SAY("NOT SETTLED: memory and ledger differ, or something stays reserved\n"); assert(false)
		fi;
#endif
		quiet = 1 }
	fi
}

init { atomic { run store(); run move(0); run move(1); run monitor() } }

#ifdef LIVE
ltl settles { <> quiet }
#endif
