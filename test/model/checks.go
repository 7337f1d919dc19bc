package model

// Law is one property: a law of the design as the models can say it.
type Law struct {
	Number int // in the models; 12 and 13 are not numbered in the design
	Text   string
}

// The properties, by the numbers that the models know them by.
var Laws = []Law{
	{1, "one owner: never two tokens, never two running copies, and only the owner's runs"},
	{2, "no arrival without a claim, and no claim ends while something can arrive for it"},
	{3, "a claim is durable before anybody is told of it"},
	{4, "two consumers, swapped in one write; at the end one is left, where the guest is, whatever lands late"},
	{5, "late verbs are refused, there is one stream, and past the commit there is only forward"},
	{6, "the guest's only whole copy is never taken away, and only a copy that is not the owner is ended"},
	{8, "what is freed is reused only once its release is durable"},
	{10, "no stream without a ticket"},
	{11, "nothing is decided by what one host shows"},
	{12, "when faults stop all is settled: the guest runs once, nothing is left, doubt only where nothing could decide"},
	{13, "every run comes to its end: nothing is tried for ever"},
}

// settled and ends are the laws that the design does not number.
const (
	settled = 12
	ends    = 13
)

// Check is one model with its bounds. Without a Mutant it must hold.
type Check struct {
	Name  string
	Model string   // the file, without .pml
	Flags []string // macros
	What  string
	// Endless: the search is for cycles too, which costs twice the states.
	Endless bool
	// Big ones are worth a compiler that takes its time.
	Big bool

	Mutant bool
	Law    int // that must catch the mutant
}

// Laws of a model.
func lawsOf(c Check) []int {
	switch {
	case c.Endless:
		return []int{ends}
	case c.Model == "ledger":
		return []int{3, 8, settled}
	case c.Model == "cold":
		return []int{1, 2, settled}
	case c.Model == "apart":
		return []int{1, 2, 6, settled}
	case c.Model == "evacuation":
		return []int{1, 2, 6, settled}
	}
	return []int{1, 2, 4, 5, 6, 10, 11, settled}
}

// checks are the models as they stand. quick takes one fault fewer of each.
func checks(quick bool) []Check {
	faults := func(n int) string {
		if quick {
			n--
		}
		return "FAULTS=" + string(rune('0'+n))
	}
	return []Check{
		{Name: "two-attempts", Model: "move", Flags: []string{"ATTEMPTS=2", "STRANGERS", faults(3)}, Big: !quick,
			What: "two attempts, verbs of the first late in the second, a stranger with an old ticket"},
		{Name: "alone", Model: "move", Flags: []string{"ALONE", faults(3)},
			What: "the destination goes by the source's ledger alone; the conductor may be gone for good"},
		{Name: "one-move", Model: "move", Flags: []string{faults(4)}, What: "one attempt, one fault more"},
		{Name: "hung", Model: "move", Flags: []string{"HUNG", "STREAMED", faults(3)},
			What: "libvirt hangs and takes up the call of a dead agent at any time later"},
		{Name: "forgets", Model: "move", Flags: []string{"FORGETS", faults(3)},
			What: "libvirtd restarts and forgets why the domain is shut off"},
		{Name: "goes-on", Model: "move", Flags: []string{"GOESON", faults(3)}, What: "the guest goes on to a third host, and old messages land"},
		{Name: "ends", Model: "move", Flags: []string{faults(3)}, Endless: true, What: "one attempt, and no endless run"},
		{Name: "ends-alone", Model: "move", Flags: []string{"ALONE", faults(2)}, Endless: true, What: "the destination alone, and no endless run"},
		{Name: "cold", Model: "cold", Flags: []string{faults(4)}, What: "a guest that is off meanwhile: there, confirmed or back again"},
		{Name: "apart", Model: "apart", Flags: []string{faults(3)}, What: "the same between hosts that never talk, by a third that may be gone for good"},
		{Name: "evacuation", Model: "evacuation", Flags: []string{faults(2)}, What: "a guest of a dead host, two that would take it, and the dead one comes back"},
		{Name: "ledger", Model: "ledger", Flags: []string{faults(4)}, What: "two moves, one device, commits that fail, kills"},
	}
}

// mutants are careless versions of single steps.
var mutants = []Check{
	{Name: "LIBVIRTS_OWN_HANDOVER", Law: 1, What: "libvirt lets the copy run at Finish, not paused"},
	{Name: "RESUME_BEFORE_ACCEPT", Law: 1, What: "the guest is resumed before the accepted token is durable"},
	{Name: "SURRENDER_AFTER_ACCEPT", Law: 1, What: "the destination accepts first, the source surrenders then"},
	{Name: "ACCEPTED_IS_FORGOTTEN", Law: 1, Flags: []string{"GOESON"}, What: "a late accept is taken though the guest has gone on"},
	{Name: "DESTINATION_TAKES_OVER", Law: 1, Flags: []string{"ALONE"}, What: "the destination resumes since the source's domain has left"},
	{Name: "LEASE_OF_AN_ARRIVING_CLAIM", Law: 2, What: "an arriving claim has a lease"},
	{Name: "JOB_GOES_ON", Law: 2, What: "the undo does not wait for the job's end"},
	{Name: "SWAP_IN_TWO_CALLS", Law: 4, What: "the two consumers are written one after the other"},
	{Name: "UNDO_BY_READING", Law: 4, What: "a swap that is not seen in Placement is not undone"},
	{Name: "ALLOCATION_DELETED_FIRST", Law: 4, What: "the migration's allocation goes before the source is cleaned up"},
	{Name: "NO_TOMBSTONE_OF_CLAIM", Law: 5, What: "the undo of the claim leaves no tombstone"},
	{Name: "UNDO_PAST_COMMIT", Law: 5, What: "a failure after the commit is undone"},
	{Name: "STREAM_BEFORE_RECORD", Law: 5, What: "libvirt is told to migrate before that is on record"},
	{Name: "ROLLBACK_OF_ANY_ATTEMPT", Law: 6, Flags: []string{"ATTEMPTS=2"}, What: "a rollback ends whatever copy it finds"},
	{Name: "DESTINATION_CLEARS", Law: 6, Flags: []string{"ALONE"}, What: "the destination ends its copy since the source's domain runs"},
	{Name: "OFF_IS_TAKEN_FOR_ENDED", Law: 6, Flags: []string{"FORGETS"}, What: "the host takes a domain that is off for one that ended, without asking the destination"},
	{Name: "NO_SECOND_LOOK", Law: 6, Flags: []string{"HUNG", "STREAMED"}, What: "the source does not look again once the stream is closed"},
	{Name: "TICKET_NOT_REVOKED", Law: 10, Flags: []string{"ATTEMPTS=2", "STRANGERS"}, What: "a ticket outlives its claim"},
	{Name: "COMMIT_UNSEEN", Law: 11, What: "the source commits before it has seen its domain leave"},
	{Name: "GUESSES", Law: 11, Flags: []string{"FORGETS"}, What: "a domain that is off is the source's, by guess"},
	{Name: "REFUSAL_NOT_WRITTEN", Law: 11, What: "the source keeps the guest and does not write that down"},
	{Name: "NO_TOMBSTONE_OF_PREPARE", Law: settled, What: "the undo of the preparation leaves no tombstone"},
	{Name: "LOST_ANSWER_IS_TAKEN_FOR_DONE", Law: settled, What: "an accept whose answer was lost is not repeated"},
	{Name: "NEXT_ATTEMPT_EARLY", Law: settled, Flags: []string{"ATTEMPTS=2"}, What: "the next attempt begins while undos of the last are still open"},
	{Name: "HOST_FORGETS_THE_JOURNAL", Law: settled, Flags: []string{"FORGETS"}, What: "the host refuses a commit though the journal has seen the domain leave"},
	{Name: "TOMBSTONE_BEFORE_ADOPTION", Law: ends, What: "a stream that its undo found finished is refused as late"},
	{Name: "HAND_OVER_WHILE_RUNNING", Model: "cold", Law: 1, What: "the token is handed over while the guest runs"},
	{Name: "TOKEN_TAKEN_BACK", Model: "cold", Law: 1, What: "a late accept is taken though the guest was handed back"},
	{Name: "STARTS_WITHOUT_TOKEN", Model: "cold", Law: 1, What: "a late finish starts the guest that was handed back"},
	{Name: "RETURNS_BEFORE_HAND_BACK", Model: "cold", Law: 1, What: "the source takes the token back before the destination has given it"},
	{Name: "HELD_HALF_RELEASED", Model: "cold", Law: 2, What: "the source's half ends with the hand-over"},
	{Name: "KEEP_IS_FORGOTTEN", Model: "cold", Law: settled, What: "a late hand-back is obeyed though the revert was undone"},
	{Name: "LATE_POWER_OFF", Model: "cold", Law: settled, What: "a late power-off is obeyed though the revert was undone"},
	{Name: "POWER_ON_FORGOTTEN", Model: "cold", Law: settled, What: "a guest whose move is undone stays off"},
	{Name: "SILENCE_DECIDES_ALWAYS", Model: "apart", Law: 1, What: "the source decides alone though it has handed the guest over"},
	{Name: "SILENCE_IS_NOT_WRITTEN", Model: "apart", Law: 1, What: "the source starts the guest alone and does not refuse the hand-over"},
	{Name: "SEAL_NOT_VERIFIED", Model: "apart", Law: 1, What: "the destination takes the conductor's word for the source's"},
	{Name: "SNAPSHOT_NOT_HELD", Model: "apart", Law: 6, What: "the guest is handed over though somebody wrote to its disks since they were read"},
	{Name: "RECONNECT_FORGOTTEN", Model: "apart", Law: 6, What: "the guest is started again at the source without its networks"},
	{Name: "LATE_POWER_OFF_AT_SOURCE", Model: "apart", Law: settled, What: "a late power-off is obeyed though the source has decided alone"},
	{Name: "LATE_COPY", Model: "apart", Law: settled, What: "a late copy is obeyed though it was removed"},
	{Name: "COPY_LEFT", Model: "apart", Law: settled, What: "the undo leaves the hidden copy"},
	{Name: "DEATH_NOT_CHECKED", Model: "evacuation", Law: 1, What: "a guest is taken over without a proof that its host is dead"},
	{Name: "DEATH_OF_AN_EARLIER_BOOT", Model: "evacuation", Law: 1, What: "a host is declared dead by what became of its boot before"},
	{Name: "TAKE_OVER_AFTER_RETURN", Model: "evacuation", Law: 1, What: "a late take-over holds though the source has come back"},
	{Name: "START_BEFORE_CONFIRMATION", Model: "evacuation", Law: 1, What: "a source that boots starts its guests before it has asked"},
	{Name: "LOOKS_BEFORE_RETURN", Model: "evacuation", Law: 1, What: "the source reads who has its guests, and takes its death away then"},
	{Name: "RECORD_OVERWRITTEN", Model: "evacuation", Law: 1, What: "the source writes its own record over a later one"},
	{Name: "FED_PAST_THE_LEASE", Model: "evacuation", Law: 1, What: "the watchdog is fed when the lease may be over"},
	{Name: "SELF_FENCE_OF_AN_EARLIER_BOOT", Model: "evacuation", Law: 1, Flags: []string{"FAULTS=2"}, What: "a host that boots still counts as one that fences itself"},
	{Name: "SELF_FENCE_WITHOUT_A_LEASE", Model: "evacuation", Law: 1, Flags: []string{"FAULTS=2"}, What: "a host says that it fences itself while its lease is over"},
	{Name: "GIVE_UP_FORGOTTEN", Model: "evacuation", Law: settled, Flags: []string{"FAULTS=2"}, What: "an evacuation is undone and a late take-over of it holds"},
	{Name: "HALF_NOT_GIVEN_UP", Model: "evacuation", Law: settled, What: "the migration's half stays when the source has come back"},
	{Name: "SHARED_DISK_REMOVED", Model: "evacuation", Law: 6, What: "the source removes the disk that it shares with the guest's new host"},
	{Name: "ANSWER_BEFORE_COMMIT", Model: "ledger", Law: 3, What: "a claim is answered before its record is durable"},
	{Name: "FREED_BEFORE_COMMIT", Model: "ledger", Law: 8, What: "a release frees at once"},
	{Name: "FAILED_COMMIT_KEEPS_THE_RESERVATION", Model: "ledger", Law: settled, What: "a commit that failed leaves its reservation"},
}

// Mutants gives them with all that is needed to run them.
func Mutants() []Check {
	out := make([]Check, len(mutants))
	for i, m := range mutants {
		if m.Model == "" {
			m.Model = "move"
		}
		m.Mutant, m.Endless = true, m.Law == ends
		m.Flags = append([]string{"M_" + m.Name}, m.Flags...)
		if m.Law != ends {
			m.Flags = append(m.Flags, "ONLY="+itoa(m.Law))
		}
		out[i] = m
	}
	return out
}

func (c Check) laws() []int {
	if c.Mutant {
		return []int{c.Law}
	}
	return lawsOf(c)
}
