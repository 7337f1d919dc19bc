package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/agent/api"
	"berth/agent/witness"
	"berth/fleet"
	"berth/internal/fault"
	"berth/internal/store"
)

// keyStore is the note of the store that this host has seen: storeMemory.
const keyStore = "fleet_store"

// storeMemory is what is durable of it.
type storeMemory struct {
	witness.Memory
	// Ledger is the count that this host's record has, or is about to have.
	Ledger uint64 `json:"ledger,omitempty"`
	// Doubted are the instances without a record that a rolled back ledger has; see package witness.
	Doubted []string `json:"doubted,omitempty"`
	// Was is the kind of the store before, while a store of another kind is not believed.
	Was string `json:"was,omitempty"`
	// Died: this host was declared dead, and has not given up yet what was evacuated by that.
	Died bool `json:"died,omitempty"`
}

// storeTrust is what a keeper knows of the store that answers it. Its fields are the task's own.
type storeTrust struct {
	memory  storeMemory
	moment  fleet.Moment  // of the last question; empty where the store does not tell
	lost    bool          // this host's ledger was not whole when the agent began
	was     string        // the kind of store that is noted, where this is another; empty else
	behind  bool          // this host's record has a higher count than its ledger
	asked   bool          // behind is known
	counts  bool          // the ledger's count is to be raised: it has other instances than it had
	saved   time.Duration // when the revision was made durable last, on the boot clock
	others  time.Duration // before that the other hosts are not asked again
	learned time.Duration // when the other hosts' names were read last; 0 for never
}

// How the store is watched; arbitrary but for the order.
const (
	// lookFirst is for how long a server that was just started is left to the hosts that know it:
	// one of them may have seen later records than it has. Above askEvery.
	lookFirst  = 20 * time.Second
	learnEvery = time.Hour // the names of the other hosts are read
	perOthers  = 16        // hosts for each of which records are read: for so many more it is asked later
)

// loadTrust reads what this host remembers of the store.
func (k *keeper) loadTrust(notes map[string][]byte) error {
	raw, found := notes[keyStore]
	k.trust.saved = k.a.rt.Boot().Since
	if !found {
		return nil
	}
	if err := json.Unmarshal(raw, &k.trust.memory); err != nil {
		// Nobody knows which store it was.
		k.a.log.Error("the note of the store of the fleet's records cannot be read", "error", err)
		k.trust.memory, k.trust.lost = storeMemory{}, true
	}
	k.setUnproven()
	return nil
}

// remember makes a memory of the store durable, and then counts by it.
func (k *keeper) remember(ctx context.Context, m storeMemory) error {
	raw, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := k.a.db.Put(ctx, store.BucketAgent, keyStore, raw); err != nil {
		return err
	}
	k.trust.memory, k.trust.saved = m, k.a.rt.Boot().Since
	k.setUnproven()
	return nil
}

func (k *keeper) setUnproven() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.others, k.was = slices.Clone(k.trust.memory.Hosts), k.trust.was
	if k.unproven = k.trust.unproven(); !k.unproven {
		k.missing = nil
	}
}

// remembers reports whether this host has seen the record of another, though it may be lost.
func (k *keeper) remembers(host string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Contains(k.others, host)
}

// unproven reports whether the store is believed only where a second witness agrees. One of another
// kind than was noted has to tell its incarnation before it can be proven.
func (t *storeTrust) unproven() bool { return t.memory.Unproven || t.was != "" }

// sameDatabase reports whether Placement is no second witness: it is in one database with the store,
// or with the store before, whose place this one has taken.
func (k *keeper) sameDatabase() bool {
	return slices.Contains([]string{k.kind, k.trust.was, k.trust.memory.Was}, kindEmbedded)
}

// recognise compares the store that answers with the one that this host remembers. One that lost
// records is not believed before all hosts have written theirs again: this one begins at once.
func (k *keeper) recognise(ctx context.Context) error {
	m, tells, err := k.records.Moment(ctx)
	if err != nil || !tells {
		return err
	}
	was, has := k.trust.memory, true
	if m.Incarnation == was.Incarnation && m.Session != "" && m.Session != was.Session {
		// The server was started anew. Its clock may have taken it past what it has lost.
		if has, err = k.records.Has(ctx, fleet.Moment{Session: was.Session, Revision: was.Revision}); err != nil {
			return err
		}
	}
	change := witness.Compare(was.Memory, m.Incarnation, m.Revision, !has, k.trust.lost || k.trust.was != "")
	if change == witness.RolledBack {
		if m, err = k.renew(ctx, m); err != nil {
			return err
		}
	}
	k.trust.moment = m
	next := was
	next.Incarnation, next.Session, next.Revision = m.Incarnation, m.Session, m.Revision
	switch change {
	case witness.Same:
		if m.Session == was.Session && (m.Revision == was.Revision || k.a.rt.Boot().Since < k.trust.saved+keepAgain) {
			k.trust.memory.Revision = m.Revision
			return k.recognisedKind(ctx)
		}
	case witness.First:
		k.writeAgain()
	default:
		k.a.log.Error("the store of the fleet's records was replaced, emptied, restored or rolled back: all hosts write theirs again before it is believed",
			"kind", k.kind, "was_kind", cmp.Or(k.trust.was, k.kind), "incarnation", m.Incarnation, "was", was.Incarnation, "revision", m.Revision, "was_revision", was.Revision)
		next.Unproven, next.Was = true, cmp.Or(k.trust.was, next.Was)
		k.writeAgain()
	}
	if err := k.remember(ctx, next); err != nil {
		return err
	}
	return k.recognisedKind(ctx)
}

// recognisedKind makes durable of which kind the store is, once it is remembered that it was
// replaced: an agent that is killed before that finds the change again.
func (k *keeper) recognisedKind(ctx context.Context) error {
	if k.trust.was == "" {
		return nil
	}
	if err := k.noteKind(ctx); err != nil {
		return err
	}
	k.trust.was = ""
	k.setUnproven()
	return nil
}

// writeAgain has every record of this host looked at, and every instance judged.
func (k *keeper) writeAgain() {
	clear(k.owned)
	k.looked, k.trust.others = false, 0
}

// renew has the store take another incarnation, since records were lost in this one.
func (k *keeper) renew(ctx context.Context, m fleet.Moment) (fleet.Moment, error) {
	k.a.log.Error("the store of the fleet's records is older than this host has seen it", "incarnation", m.Incarnation, "revision", m.Revision, "seen", k.trust.memory.Revision)
	if err := k.records.RenewIncarnation(ctx, m.Incarnation); err != nil {
		return m, err
	}
	now, _, err := k.records.Moment(ctx)
	if err == nil && now.Incarnation == m.Incarnation {
		err = fault.New(fault.Unavailable, "the store of the fleet's records is older than it was, and keeps its incarnation %s", m.Incarnation)
	}
	return now, err
}

// rolledBack is called where a record of this host is older than it was.
func (k *keeper) rolledBack(ctx context.Context) error {
	k.writeAgain()
	m, tells, err := k.records.Moment(ctx)
	if err != nil || !tells || m.Incarnation != k.trust.memory.Incarnation {
		return err // another incarnation is found by recognise
	}
	_, err = k.renew(ctx, m)
	return err
}

// beforeLook reads what the instances are judged by. fault.Unavailable while a server that was just
// started has to be left to the other hosts.
func (k *keeper) beforeLook(ctx context.Context, unsure bool) error {
	t := &k.trust
	if t.moment.Incarnation == "" {
		return nil
	}
	if left := lookFirst - t.moment.Serving; unsure && t.moment.Serving > 0 && left > 0 && len(t.memory.Hosts) > 0 && !k.a.host.BootConfirmed() {
		return fault.New(fault.Unavailable, "the server of the fleet's records was started a moment ago: other hosts look at it first, for %s more", left.Round(time.Second))
	}
	if !t.asked {
		now, err := k.records.Host(ctx, k.a.name)
		if err != nil && fault.KindOf(err) != fault.Internal { // it is there since Return
			return err
		}
		t.behind = now.Ledger > t.memory.Ledger
		t.asked, t.counts = true, t.counts || t.behind || now.Ledger == 0
		if t.behind {
			k.a.log.Error("the ledger of this host is older than it was: an instance without a record of the fleet is in doubt", "count", t.memory.Ledger, "was", now.Ledger)
		}
	}
	return nil
}

// learn remembers from time to time which other hosts there are, so that they are missed in a
// store that lost them. What was given away is handed over then whoever waits for it.
func (k *keeper) learn(ctx context.Context) error {
	if t := &k.trust; t.moment.Incarnation == "" || t.learned > 0 && k.a.rt.Boot().Since < t.learned+learnEvery {
		return nil
	}
	there, err := k.otherHosts(ctx)
	if err == nil {
		err = k.handBack(ctx)
	}
	if err != nil {
		return err
	}
	k.trust.learned = k.a.rt.Boot().Since
	next := k.trust.memory
	next.Hosts = nil
	if next.Unproven { // those that it lost are remembered until they have written again
		next.Hosts = slices.Clone(k.trust.memory.Hosts)
	}
	for _, h := range there {
		if !h.Dead && h.Name != k.a.name {
			next.Hosts = append(next.Hosts, h.Name)
		}
	}
	slices.Sort(next.Hosts)
	next.Hosts = slices.Compact(next.Hosts)
	if slices.Equal(next.Hosts, k.trust.memory.Hosts) {
		return nil
	}
	return k.remember(ctx, next)
}

// otherHosts reads the hosts of the store. One whose record cannot be read has not written again.
func (k *keeper) otherHosts(ctx context.Context) ([]witness.Host, error) {
	hosts, err := k.records.Hosts(ctx)
	unreadable, err := fleet.Unreadable(err)
	if err != nil {
		return nil, err
	}
	deaths, err := k.records.Deaths(ctx)
	if _, err = fleet.Unreadable(err); err != nil {
		return nil, err
	}
	dead := map[string]bool{}
	var out []witness.Host
	for _, d := range deaths {
		dead[d.Host] = true
		out = append(out, witness.Host{Name: d.Host, Dead: true})
	}
	for _, h := range hosts {
		if !dead[h.Name] {
			out = append(out, witness.Host{Name: h.Name, Incarnation: h.Incarnation})
		}
	}
	for _, key := range unreadable {
		if name := fleet.NameOf(key); !dead[name] {
			out = append(out, witness.Host{Name: name})
		}
	}
	return out, nil
}

// afterLook refuses to confirm by a store that became another one during the look.
func (k *keeper) afterLook(ctx context.Context) error {
	m, tells, err := k.records.Moment(ctx)
	if err == nil && tells && m.Incarnation != k.trust.moment.Incarnation {
		err = fault.New(fault.Unavailable, "the store of the fleet's records became another one during the look")
	}
	return err
}

// count raises the ledger's count, and makes it durable before it is in the record: a ledger that
// has a lower one than the record was rolled back.
func (k *keeper) count(ctx context.Context, written uint64) (uint64, error) {
	next := k.trust.memory
	next.Ledger = max(next.Ledger, written) + 1
	err := k.remember(ctx, next)
	return next.Ledger, err
}

// doubt makes durable that an instance of a rolled back ledger is not started in later boots either.
func (k *keeper) doubt(ctx context.Context, id string) error {
	if slices.Contains(k.trust.memory.Doubted, id) {
		return nil
	}
	next := k.trust.memory
	next.Doubted = append(slices.Clone(next.Doubted), id)
	return k.remember(ctx, next)
}

// writes reports whether the record of an instance is this host's to write: one that waits for
// other hosts' records is, since they wait for it too. The higher epoch wins.
func (k *keeper) writes(id string) bool {
	if _, waits := k.a.host.Unconfirmed(id); !waits {
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.waiting[id] && k.unproven
}

// describe gives the description of an instance for its record. In a store that lost its records
// one that cannot be had is left as it was: that the instance is here must be written.
func (k *keeper) describe(ctx context.Context, id string, was json.RawMessage) (json.RawMessage, error) {
	g, err := k.a.host.Record(ctx, id)
	if err != nil {
		if !k.trust.memory.Unproven || errors.Is(err, fault.Busy) || ctx.Err() != nil {
			return nil, err
		}
		k.a.log.Warn("the record of an instance is written without its description", "instance", id, "error", err)
		return was, nil
	}
	return json.Marshal(g)
}

// rewritten notes for others that all records of this host are written in the store's incarnation.
func (k *keeper) rewritten(ctx context.Context) error {
	now := k.trust.moment.Incarnation
	if now == "" || k.self == nil || k.self.Incarnation == now || !k.looked {
		return nil
	}
	for _, inst := range k.a.host.Owned() {
		if rec := k.owned[inst.UUID]; k.writes(inst.UUID) && (rec == nil || !rec.right) {
			return nil
		}
	}
	if err := k.records.Rewrote(ctx, k.a.name, now); err != nil {
		return err
	}
	self, err := k.records.Host(ctx, k.a.name)
	if err == nil {
		k.self = &self
	}
	return err
}

// awaitOthers looks, while the store is not believed, whether all hosts have written again. Then
// every instance that waits is judged anew. A host that waits for a record of this one's gets it.
func (k *keeper) awaitOthers(ctx context.Context) error {
	now := k.a.rt.Boot().Since
	if !k.trust.memory.Unproven || now < k.trust.others {
		return nil
	}
	there, err := k.otherHosts(ctx)
	if err != nil {
		return err
	}
	k.trust.others = now + min(time.Minute, keepEvery*time.Duration(1+len(there)/perOthers))
	missing := witness.Missing(k.a.name, k.trust.memory.Incarnation, k.trust.memory.Hosts, there)
	k.mu.Lock()
	k.missing = missing
	k.mu.Unlock()
	if err := k.handBack(ctx); err != nil {
		return err
	}
	if len(missing) > 0 || k.self == nil || k.self.Incarnation != k.trust.memory.Incarnation {
		return nil
	}
	next := k.trust.memory
	next.Unproven, next.Was = false, ""
	if err := k.remember(ctx, next); err != nil {
		return err
	}
	k.looked = false
	k.a.log.Info("all hosts have written their records again: the store is believed", "incarnation", next.Incarnation)
	return nil
}

func (k *keeper) missingHosts() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.missing)
}

// ready refuses to give an instance of source away by a store that lost records: another host may
// have it, and has not written so again. From memory.
func (k *keeper) ready(source string) error {
	if k == nil {
		return nil // there are no records either
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	missing := slices.DeleteFunc(slices.Clone(k.missing), func(h string) bool { return h == source })
	if !k.unproven || k.missing != nil && len(missing) == 0 {
		return nil
	}
	names, change := "not read yet", "wait a moment and ask again"
	if len(missing) > 0 {
		names = strings.Join(missing, ", ")
		change = fmt.Sprintf(`start the agents of these hosts; of one that is gone, berth host declare-dead %s --reason "how you know"`, missing[0])
	}
	return fault.Refuse(fault.Unavailable, "", fault.Reason{
		Code: "store_unproven", Message: "the store of the fleet's records was replaced, emptied, restored or rolled back, and hosts have not written theirs again: " + names,
		Have: names, Change: change,
	})
}

// originCondition names the instances that wait for the host that they came from; false where none
// does. Those that wait for the fleet's records are the keeper's to name.
func originCondition(a *Agent) (api.Condition, bool) {
	if a.host.Waits() || a.observing() {
		return api.Condition{}, false
	}
	var reasons []fault.Reason
	var names []string
	for _, inst := range a.host.Owned() {
		if why, waits := a.host.Unconfirmed(inst.UUID); waits {
			names = append(names, inst.Name)
			reasons = append(reasons, fault.Reason{
				Code: "not_confirmed", Message: "instance " + inst.Name + " is not started in this boot yet: " + why, Have: inst.UUID,
				Change: `start the agent of that host, or, where the instance surely runs nowhere else, berth instance start ` + inst.Name + ` --force-owner --reason "how you know"`,
			})
		}
	}
	if len(names) == 0 {
		return api.Condition{}, false
	}
	return api.Degraded("owners", "instances that wait for a witness: "+strings.Join(names, ", "), reasons...), true
}
