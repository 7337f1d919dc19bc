package audit

import (
	"cmp"
	"maps"
	"slices"

	"berth/placementclient"
)

// Join judges every subject. Rows are in order of kind, name and subject.
func Join(in Input) []Row {
	j := index(in)
	var out []Row
	for _, s := range j.subjects() {
		out = append(out, j.row(s))
	}
	out = append(out, j.providers()...)
	slices.SortStableFunc(out, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Subject, b.Subject))
	})
	return out
}

// Judge is the row of one subject.
func Judge(in Input, subject string) Row { return index(in).row(subject) }

// Unread are the consumers that must be read whole before they can be judged: those
// that do not agree by what the providers say, or of which nobody here knows.
func Unread(in Input) []string {
	j := index(in)
	if j.in.Placement.Why != "" || j.in.Tree == nil {
		return nil
	}
	var out []string
	added := map[string]bool{}
	add := func(consumer string) {
		if _, read := in.Placement.Consumers[consumer]; !read && !added[consumer] {
			added[consumer] = true
			out = append(out, consumer)
		}
	}
	for _, s := range j.subjects() {
		if j.needsWhole(s) {
			add(s)
		}
		if m, ok := j.moveOf(s); ok && m.Kept != nil {
			add(m.UUID)
		}
	}
	return out
}

// Strangers are the consumers that nobody here knows, or that hold of other hosts:
// others are to be asked, those whose providers they hold (as found in Consumers),
// and the one that the token was given to.
func Strangers(in Input) []string {
	j := index(in)
	var out []string
	for _, s := range j.subjects() {
		f := j.facts(s)
		if f.Allocation != AllocationUnknown && f.Story == StoryLost && f.Token == TokenTransit {
			out = append(out, s) // whether it is confirmed is known where it is
			continue
		}
		if f.Allocation == AllocationUnknown || f.Story&moving != 0 {
			continue
		}
		if f.Allocation&(AllocationDoubled|AllocationElsewhere) != 0 && f.Token == TokenHere ||
			f.Token&(TokenNone|TokenElsewhere) != 0 && f.Claim == ClaimNone && f.Allocation&(allocatedHere|AllocationDoubled) != 0 {
			out = append(out, s)
		}
	}
	return out
}

type joined struct {
	in        Input
	instances map[string]Instance
	claims    map[string]Claim   // one of each instance
	all       map[string][]Claim // all of each
	moves     map[string]Move    // by migration
	going     map[string]Move    // unfinished, by instance
	domains   map[string]LibvirtDomain
	names     map[string]string                    // of providers
	sums      map[string]placementclient.Resources // see used
}

func index(in Input) *joined {
	j := &joined{
		in: in, instances: map[string]Instance{}, claims: map[string]Claim{}, all: map[string][]Claim{}, moves: map[string]Move{},
		going: map[string]Move{}, domains: map[string]LibvirtDomain{}, names: map[string]string{},
		sums: map[string]placementclient.Resources{},
	}
	for _, i := range in.Ledger.Instances {
		j.instances[i.UUID] = i
	}
	for _, c := range in.Ledger.Claims {
		j.all[c.Instance] = append(j.all[c.Instance], c)
		// The farthest counts: a guest has one claim of its own, and one of a move.
		if was, ok := j.claims[c.Instance]; !ok || claimRank(c) > claimRank(was) {
			j.claims[c.Instance] = c
		}
	}
	for _, m := range in.Ledger.Moves {
		j.moves[m.UUID] = m
		if !m.Over {
			j.going[m.Instance] = m
		}
	}
	for _, d := range in.Domains.List {
		j.domains[d.UUID] = d
	}
	if in.Tree != nil {
		for _, p := range append(slices.Clone(in.Tree.Providers), in.Tree.Retired...) {
			j.names[p.UUID] = p.Name
		}
	}
	return j
}

func claimRank(c Claim) int {
	return map[ClaimState]int{ClaimPending: 1, ClaimArriving: 2, ClaimHeld: 3, ClaimBound: 4}[c.State]
}

// subjects are all, in order of uuid.
func (j *joined) subjects() []string {
	set := map[string]bool{}
	for id := range j.instances {
		set[id] = true
	}
	for id := range j.claims {
		set[id] = true
	}
	for id := range j.domains {
		set[id] = true
	}
	for id, m := range j.moves {
		if !m.Over && len(j.in.Placement.held(id)) > 0 {
			set[id] = true
		}
	}
	for rp, all := range j.in.Placement.Providers {
		if j.in.Tree == nil || !j.in.Tree.Owns(rp) {
			continue // of a sharing provider every host has consumers
		}
		for id := range all {
			set[id] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// moveOf is the unfinished move that a consumer is a part of.
func (j *joined) moveOf(subject string) (Move, bool) {
	if m, ok := j.moves[subject]; ok && !m.Over {
		return m, true
	}
	m, ok := j.going[subject]
	return m, ok
}

// used is what all consumers hold of a provider. It is added up once: guests by the
// thousand may float.
func (j *joined) used(rp string) placementclient.Resources {
	sum, known := j.sums[rp]
	if !known {
		sum = placementclient.Resources{}
		for _, r := range j.in.Placement.Providers[rp] {
			for class, n := range r {
				sum[class] += n
			}
		}
		j.sums[rp] = sum
	}
	return sum
}

// want is what this host's claim stands for; nil without one. The consumer of a
// move wants what the instance's claim here is.
func (j *joined) want(subject string, now map[string]placementclient.Resources) map[string]placementclient.Resources {
	claim, ok := j.claims[subject]
	if m, isMove := j.moves[subject]; isMove && !ok {
		claim, ok = j.claims[m.Instance]
	}
	if !ok || j.in.Tree == nil {
		return nil
	}
	return j.place(claim, subject, now)
}

// place is where a claim is counted for a consumer.
func (j *joined) place(claim Claim, subject string, now map[string]placementclient.Resources) map[string]placementclient.Resources {
	held := claim.Held
	held.Consumer = subject
	tree := j.in.Tree
	if cells := tree.Undecided(held, now); len(cells) > 0 {
		// It floats and is counted nowhere yet: on a cell with room.
		used := map[string]placementclient.Resources{}
		for _, rp := range cells {
			used[rp] = maps.Clone(j.used(rp))
			for class, n := range j.in.Placement.Providers[rp][subject] {
				used[rp][class] -= n // its own
			}
		}
		tree = tree.Beside(used)
	}
	return tree.Place(held, now)
}

// unplaced are the devices of a claim that the host's tree does not know, so that
// nobody can say where they are counted.
func (j *joined) unplaced(subject string) []string { return j.in.Tree.Unknown(j.claims[subject].Held) }

func (j *joined) needsWhole(subject string) bool {
	held := j.in.Placement.held(subject)
	_, known := j.instances[subject]
	_, claimed := j.claims[subject]
	if !known && !claimed {
		return len(held) > 0
	}
	if !claimed && !j.instances[subject].Here && len(held) == 0 {
		// What is on a move is somewhere.
		_, going := j.moveOf(subject)
		return going
	}
	mine, _ := split(j.in.Tree, held, j.instances[subject].Here)
	return !same(mine, j.want(subject, held))
}

// facts gathers what is known of a subject.
func (j *joined) facts(subject string) Facts {
	f := Facts{Token: TokenNone, Claim: ClaimNone, Domain: DomainGone, Story: StoryNone, Type: TypeUnknown, Fleet: FleetUnasked}
	inst, known := j.instances[subject]
	_, isMove := j.moves[subject]
	m, going := j.moveOf(subject)
	switch {
	case known && inst.Here:
		f.Token = TokenHere
	case known && going:
		f.Token = TokenTransit
	case known:
		f.Token = TokenElsewhere
	}
	if c, ok := j.claims[subject]; ok {
		f.Claim = c.State
	}
	d, defined := j.domains[subject]
	switch {
	case defined && d.Active:
		f.Domain = DomainRunning
	case defined:
		f.Domain = DomainOff
	case j.in.Domains.Why != "":
		f.Domain = DomainUnknown
	}
	switch {
	case going:
		f.Story = StoryRuns
		switch {
		case isMove:
		case m.Kept != nil && j.lost(subject) && j.lost(m.UUID):
			f.Story = StoryKept
		case m.Lost:
			f.Story = StoryLost
		case m.Waits:
			f.Story = StoryWaits
		}
	case isMove, known && inst.Migration != "" && j.moves[inst.Migration].Over:
		f.Story = StoryOver
	}
	whole, read := j.in.Placement.Consumers[subject]
	switch {
	case read && whole.ConsumerType == placementclient.ConsumerMigration:
		f.Type = TypeMigration
	case read && whole.ConsumerType == placementclient.ConsumerInstance, known:
		f.Type = TypeInstance
	}
	if a, asked := j.in.Fleet[subject]; asked {
		f.Fleet = a.Fleet
	}
	f.Allocation = j.allocation(subject)
	return f
}

// lost reports whether Placement was read and does not have a consumer.
func (j *joined) lost(consumer string) bool {
	whole, read := j.in.Placement.Consumers[consumer]
	return read && !whole.Exists()
}

func (j *joined) allocation(subject string) Allocation {
	if j.in.Tree == nil || j.in.Placement.Why != "" {
		return AllocationUnknown
	}
	whole, read := j.in.Placement.Consumers[subject]
	held := whole.Allocations
	if !read {
		if held = j.in.Placement.held(subject); j.needsWhole(subject) {
			return AllocationUnknown
		}
	}
	mine, others := split(j.in.Tree, held, j.instances[subject].Here)
	_, claimed := j.claims[subject]
	want := j.want(subject, held)
	switch {
	case len(mine) == 0 && len(others) == 0:
		return AllocationNone
	case len(mine) == 0:
		return AllocationElsewhere
	case claimed && !within(mine, want) && len(j.unplaced(subject)) > 0:
		return AllocationUnknown // what it holds may be what is used
	case len(others) > 0:
		return AllocationDoubled
	case claimed && same(mine, want):
		return AllocationEqual
	}
	if m, going := j.moveOf(subject); going && j.asMoved(subject, m, held, mine) {
		return AllocationEqual
	}
	for rp := range mine {
		if _, ok := want[rp]; !ok && want != nil {
			return AllocationMisplaced
		}
	}
	return AllocationAmounts
}

// asMoved reports whether a consumer of a move holds of this host what some step of it
// leaves: what one of the guest's claims stands for, of the migration's consumer at most
// that, or what the journal says.
func (j *joined) asMoved(subject string, m Move, held, mine map[string]placementclient.Resources) bool {
	if m.Writes {
		return true
	}
	isMove := subject == m.UUID
	for _, c := range j.all[m.Instance] {
		switch want := j.place(c, subject, held); {
		case isMove && within(mine, want), same(mine, want):
			return true
		}
	}
	if len(j.all[m.Instance]) == 0 && (isMove || !j.instances[subject].Here) {
		return true // the claim on the host that it leaves goes before what is counted there does
	}
	if m.Kept == nil {
		return false
	}
	kept := m.Kept.Instance
	if isMove {
		kept = m.Kept.Migration
	}
	by, _ := split(j.in.Tree, kept.Allocations, j.instances[subject].Here)
	return same(mine, by)
}

// row judges a subject, with its words.
func (j *joined) row(subject string) Row {
	f := j.facts(subject)
	then, found := Decide(f)
	if !found {
		then = Judgement{Verdict: Differs, Code: "undecided"}
	}
	r := Row{Subject: subject, Verdict: then.Verdict, Code: then.Code, Heal: then.Heal, Facts: f, Name: j.name(subject), Kind: j.kind(subject)}
	held := j.held(subject)
	// Of a move, the other host may have what is wanted here.
	if r.Verdict != Agree && f.Allocation != AllocationUnknown && f.Story&moving == 0 {
		r.Differences = j.differences(subject, held)
	}
	r.Write = j.write(subject, then.Heal)
	j.say(&r)
	return r
}

func (j *joined) held(subject string) map[string]placementclient.Resources {
	if whole, read := j.in.Placement.Consumers[subject]; read {
		return whole.Allocations
	}
	return j.in.Placement.held(subject)
}

func (j *joined) kind(subject string) Kind {
	_, known := j.instances[subject]
	_, claimed := j.claims[subject]
	_, isMove := j.moves[subject]
	_, domain := j.domains[subject]
	switch {
	case known || claimed:
		return KindInstance
	case isMove:
		return KindMigration
	case domain:
		return KindDomain
	}
	return KindConsumer
}

func (j *joined) name(subject string) string {
	if i, ok := j.instances[subject]; ok {
		return i.Name
	}
	return j.domains[subject].Name
}

func (j *joined) differences(subject string, held map[string]placementclient.Resources) []Difference {
	want := j.want(subject, held)
	if !j.instances[subject].Here {
		// What it holds of its own host is not this one's to want.
		held, _ = split(j.in.Tree, held, false)
		if j.instances[subject].Holder != "" {
			want = nil
		}
	}
	var out []Difference
	for _, rp := range slices.Sorted(maps.Keys(union(want, held))) {
		w := want[rp]
		for _, class := range slices.Sorted(maps.Keys(union(map[string]int64(w), map[string]int64(held[rp])))) {
			if w[class] != held[rp][class] {
				out = append(out, Difference{Provider: j.provider(rp), Class: class, Want: w[class], Have: held[rp][class]})
			}
		}
	}
	return out
}

func union[V any](a, b map[string]V) map[string]V {
	out := maps.Clone(a)
	if out == nil {
		out = map[string]V{}
	}
	maps.Copy(out, b)
	return out
}

// provider names one for people.
func (j *joined) provider(rp string) string {
	return cmp.Or(j.names[rp], j.in.Names[rp], rp)
}

// write is what a heal puts. The rules give heals only for consumers that were read
// whole.
func (j *joined) write(subject string, h Heal) map[string]placementclient.Allocations {
	whole := j.in.Placement.Consumers[subject].Clone()
	inst := j.instances[subject]
	switch h {
	case HealPut, HealTake:
		next := placementclient.Allocations{
			Allocations: j.want(subject, whole.Allocations), ConsumerGeneration: whole.ConsumerGeneration,
			ProjectID: inst.ProjectID, UserID: inst.UserID, ConsumerType: placementclient.ConsumerInstance,
		}
		return map[string]placementclient.Allocations{subject: next}
	case HealDrop:
		_, others := split(j.in.Tree, whole.Allocations, false)
		whole.Allocations, whole.ConsumerType = others, placementclient.ConsumerInstance
		return map[string]placementclient.Allocations{subject: whole}
	case HealDelete:
		whole.Allocations, whole.ConsumerType = nil, placementclient.ConsumerMigration
		return map[string]placementclient.Allocations{subject: whole}
	case HealHalves:
		m, _ := j.moveOf(subject)
		i, mig := m.Kept.Instance.Clone(), m.Kept.Migration.Clone()
		i.ConsumerGeneration, i.ConsumerType = nil, placementclient.ConsumerInstance
		mig.ConsumerGeneration, mig.ConsumerType = nil, placementclient.ConsumerMigration
		if len(mig.Allocations) == 0 {
			// There was nothing to keep; an empty write would leave an orphan.
			return map[string]placementclient.Allocations{m.Instance: i}
		}
		return map[string]placementclient.Allocations{m.Instance: i, m.UUID: mig}
	}
	return nil
}
