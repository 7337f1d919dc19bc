package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/agent/api"
	"berth/agent/host"
	"berth/fleet"
	"berth/fleet/permit"
	"berth/internal/fault"
	"berth/internal/store"
)

// keeper keeps what this host tells the fleet: its own record, and those of the guests whose
// token is here. It observes, compares, and writes what differs; in a steady state it writes
// nothing, and asks for little. Nothing else waits for it but what was here before this boot:
// see package agent/host, returned.go. Its rounds are, in this order:
//
//	return    from here nobody takes a guest from this host by what was known before
//	look      at each guest, once in a process and after a death: who is ahead gets way, of
//	          whom nobody knows is held; then the boot is confirmed, and guests are started
//	clean up  after guests that were given way for, and that live where they went
//	keep      records that are not as the guests are, a few in a round
//
// One guest that cannot be read is named, and keeps no other from its turn.
type keeper struct {
	a       *keptHost
	kind    string // "etcd" or "embedded"; empty for none
	store   fleet.Store
	records *fleet.Records // nil for none
	broken  error          // why the way to the store could not be made; nil where it could
	removed string         // the kind of the store that this host had records in, where none is configured any more

	// The fields up to the blank line are the task's own.
	looked  bool                   // every guest was looked at since the last return
	suspect bool                   // this host was declared dead: Placement is asked too
	starts  bool                   // guests that waited are to be started
	owned   map[string]*keptRecord // by instance: what its record says, as far as is known
	written map[string]uint64      // the guests with a record of this host's, and its epoch; durable
	loaded  bool                   // written was read
	self    *fleet.Host            // as it was seen last; nil before
	marked  []string               // guests that libvirt's hook knows of; nil before
	began   time.Duration          // of the task, on the boot clock
	asks    time.Duration          // before that whether this host counts as dead is not asked again
	seek    bool                   // guests that only the records know of are to be looked for
	seekAt  time.Duration          // not before that
	found   map[string]string      // those that the last look found, by their names
	again   time.Duration          // before that a store that is not there is not asked again
	trust   storeTrust             // which store this is; see fleetwitness.go

	// mu guards what follows; nothing is called under it.
	mu       sync.Mutex
	known    bool             // the durable note that records of this host may be there
	answered time.Duration    // when the store answered last, on the boot clock; 0 for never
	err      error            // of the last round; nil after a good one
	kept     int              // records of guests
	absent   bool             // Placement is there and keeps no records
	failed   map[string]error // by instance: why its record is not as the guest is
	orphans  []string         // names of guests that the records have here, and this ledger has not
	// unreadable are the keys of records, of any host's guests, that are not what they should be.
	unreadable []string
	giving     map[string]string // by instance: who has it by now, and what is left of it here
	old        oldDisks          // of instances that were evacuated from here
	waiting    map[string]bool   // instances that wait for a witness; they are held too
	was        string            // the kind of the store before; empty once this one is recognised
	others     []string          // hosts that this one has seen in the store, and remembers
	unproven   bool              // the store lost records, and not all hosts have written again
	missing    []string          // those hosts; nil before they were read
}

// How often the keeper works; arbitrary but for the order: a record is kept within seconds, and
// what only somebody else can have changed is seen within minutes.
const (
	keepEvery    = 2 * time.Second
	askEvery     = 10 * time.Second // whether this host was declared dead, and its own record
	keepAgain    = 10 * time.Minute // a record that was right is looked at again
	keepRetry    = 10 * time.Second // one that could not be written
	keepEach     = 8                // records that are looked at in a round: each asks the hypervisor
	keepPatience = 5 * time.Second  // for one guest
	keepPatient  = 30 * time.Second // for which a guest may be worked on before anybody is told
	roundLimit   = 30 * time.Second
	absentEvery  = time.Minute
	// witnessTimeout is how long Placement is waited for, after a start, before guests are
	// believed to be here by the records alone.
	witnessTimeout = 15 * time.Second
)

// keyFleet is the note that records of this host may be in a store, with its kind, and
// prefixFleet that of each guest of which one is.
const (
	keyFleet    = "fleet"
	prefixFleet = "fleet/"
)

// newKeeper makes the way to the store; it does not connect. The host is added before open.
func newKeeper(a *Agent) *keeper {
	store, kind, broken := a.fleetStore()
	k := keeperOf(&keptHost{
		name: a.name, uuid: a.uuid, rt: a.rt, log: a.log, tracker: a.tracker, db: a.db, driver: a.driver,
		allocations: a.allocations, hook: a.guardian.files.Keep, observing: a.observing, estranged: a.estranged,
		lost:       func() bool { return a.ledger.state() != nil },
		settled:    func() bool { err := a.settled.Load(); return err != nil && *err == nil },
		recognised: a.recognised, asked: &a.asked,
	}, store, kind)
	k.broken = broken
	return k
}

func keeperOf(h *keptHost, store fleet.Store, kind string) *keeper {
	k := &keeper{
		a: h, store: store, kind: kind, owned: map[string]*keptRecord{}, written: map[string]uint64{}, failed: map[string]error{}, giving: map[string]string{},
	}
	if store != nil {
		k.records = fleet.New(store, h.rt)
	}
	return k
}

// open has the guests of a boot before wait for the store, where this host may have records there.
func (k *keeper) open(ctx context.Context) error {
	a := k.a
	if k.broken != nil {
		return k.broken
	}
	var was string
	raw, found, err := a.db.Get(ctx, store.BucketAgent, keyFleet)
	if err == nil && found {
		err = json.Unmarshal(raw, &was)
	}
	if err != nil {
		was = k.kind // nobody knows: then it is waited for
		a.log.Error("whether this host has records in a store is not known", "error", err)
	}
	k.known = was != ""
	if k.store != nil && was != k.kind {
		k.trust.was = was
		k.setUnproven()
	}
	if k.store == nil && was != "" && !a.observing() {
		a.log.Warn("this host had records in a store, and has none configured any more: Placement is asked for what was here before", "store", was)
		k.removed = was
		return a.host.AwaitRecords(ctx, false)
	}
	if k.store == nil && !a.observing() {
		if err := a.hook(nil); err != nil {
			a.log.Warn("libvirt's hook goes by notes of guests that nobody needs any more", "error", err)
		}
	}
	k.trust.lost = a.lost()
	// Whether a Placement keeps records is not known before it has answered once.
	if k.store == nil || a.observing() || k.kind != kindEtcd && was == "" {
		return nil
	}
	return a.host.AwaitRecords(ctx, k.trust.lost)
}

// close ends the connections to the store.
func (k *keeper) close() error {
	if c, ok := k.store.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// forHost are the records as this host's verbs ask for them; nil for none.
func (k *keeper) forHost() host.FleetRecords {
	if k.records == nil {
		return nil
	}
	return k.records
}

// fleetRecords are the fleet's records, or why there are none.
func (a *Agent) fleetRecords() (*fleet.Records, error) {
	if a.keeper == nil || a.keeper.records == nil {
		return nil, fleet.ErrNoStore()
	}
	return a.keeper.records, nil
}

// run works until ctx ends. In mode observe nothing is written, so nothing is kept.
func (k *keeper) run(ctx context.Context) error {
	if k.records == nil && k.removed == "" || k.a.observing() {
		<-ctx.Done()
		return nil
	}
	select {
	case <-k.a.recognised: // a copied machine must not return in the other's name
	case <-ctx.Done():
		return nil
	}
	if k.records == nil {
		k.runRemoved(ctx)
		<-ctx.Done()
		return nil
	}
	k.began = k.a.rt.Boot().Since
	k.a.asked.Begin(loopFleet, k.a.rt.Now(), keepEvery+roundLimit+keepPatience)
	defer k.a.asked.End(loopFleet)
	return k.rounds(ctx)
}

func (k *keeper) rounds(ctx context.Context) error {
	for ctx.Err() == nil {
		if k.a.rt.Boot().Since >= k.again && k.a.estranged() == nil {
			k.round(ctx)
		} else {
			k.a.asked.Round(loopFleet, k.a.rt.Now()) // nothing is asked
		}
		_ = k.a.rt.Sleep(ctx, keepEvery) // its end is looked at in the loop
	}
	return nil
}

// round is one; what failed is told, and done again in the next.
func (k *keeper) round(ctx context.Context) {
	ctx, cancel := k.a.rt.WithTimeout(ctx, roundLimit)
	defer cancel()
	err := k.once(ctx)
	now := k.a.rt.Boot().Since
	absent := errors.Is(err, fault.NotFound) && fault.HasReason(err, fleet.NoStore)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err, k.absent = err, absent
	heard := fault.KindOf(err) != fault.Unavailable && fault.KindOf(err) != fault.InDoubt
	if heard || k.answered == 0 && !k.known && k.kind != kindEtcd { // of a Placement that may keep no records none is due
		k.a.asked.Round(loopFleet, k.a.rt.Now())
	}
	switch kind := fault.KindOf(err); {
	case absent && !k.known:
		k.again = now + absentEvery
	case kind != fault.Unavailable && kind != fault.InDoubt && !absent:
		k.answered = now
	}
}

func (k *keeper) once(ctx context.Context) error {
	if err := k.load(ctx); err != nil {
		return err
	}
	now := k.a.rt.Boot().Since
	ask := now >= k.asks || !k.looked || len(k.a.host.Held()) > 0
	if ask {
		if err := k.comeBack(ctx); err != nil {
			return err
		}
	}
	// A death that is still remembered lets records end what runs: it is looked at until all that it gave
	// to others has been given up, and it is forgotten.
	if !k.looked || len(k.a.host.Held()) > 0 || k.trust.memory.Died {
		if err := k.look(ctx); err != nil {
			return err
		}
	}
	// Each of these tells its own faults, and does not keep the next from its turn.
	err := errors.Join(k.start(ctx), k.cleanUp(ctx), k.keep(ctx))
	if ask {
		err = errors.Join(err, k.keepHost(ctx))
	}
	err = errors.Join(err, k.rewritten(ctx), k.awaitOthers(ctx), k.learn(ctx))
	k.seekOrphans(ctx)
	switch {
	case err != nil:
		k.asks = 0
	case ask:
		k.asks = now + askEvery
	}
	return err
}

// load reads which guests this host has written records of.
func (k *keeper) load(ctx context.Context) error {
	if k.loaded {
		return nil
	}
	all, err := k.a.db.List(ctx, store.BucketAgent)
	if err != nil {
		return err
	}
	for key, raw := range all {
		if id, ok := strings.CutPrefix(key, prefixFleet); ok {
			var epoch uint64
			// One that cannot be read is looked at all the same: the record decides.
			_ = json.Unmarshal(raw, &epoch)
			k.written[id] = epoch
		}
	}
	if err := k.loadTrust(all); err != nil {
		return err
	}
	k.loaded = true
	return nil
}

// note makes durable that records of this host may be in the store, before the first is.
func (k *keeper) note(ctx context.Context) error {
	if k.known {
		return nil
	}
	// The store is there: one that is not must not make guests wait.
	if _, err := k.records.Host(ctx, k.a.name); err != nil && !(errors.Is(err, fault.NotFound) && !fault.HasReason(err, fleet.NoStore)) {
		return err
	}
	return k.noteKind(ctx)
}

// noteKind makes the kind of the store durable.
func (k *keeper) noteKind(ctx context.Context) error {
	raw, err := json.Marshal(k.kind)
	if err != nil {
		return err
	}
	if err := k.a.db.Put(ctx, store.BucketAgent, keyFleet, raw); err != nil {
		return err
	}
	k.mu.Lock()
	k.known = true
	k.mu.Unlock()
	return nil
}

// mark notes for libvirt's hook which guests are managed, over this boot.
func (k *keeper) mark() error {
	var guests []string
	for _, inst := range k.a.tracker.Instances() {
		guests = append(guests, inst.UUID)
	}
	slices.Sort(guests)
	if k.marked != nil && slices.Equal(k.marked, guests) {
		return nil
	}
	if err := k.a.hook(guests); err != nil {
		return err
	}
	k.marked = append([]string{}, guests...)
	return nil
}

// errStore says that it was the store which did not answer, not the guest's hypervisor.
type errStore struct{ error }

func (e errStore) Unwrap() error { return e.error }

func storeSilent(err error) bool {
	var s errStore
	return errors.As(err, &s) && fault.KindOf(err) == fault.Unavailable
}

// spread keeps the slow looks of many guests apart.
func spread(id string) time.Duration {
	var sum uint32
	for _, c := range []byte(id) {
		sum = sum*31 + uint32(c)
	}
	return time.Duration(sum%60) * time.Second
}

func (k *keeper) fail(id string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		delete(k.failed, id)
		return
	}
	if was := k.failed[id]; was == nil || was.Error() != err.Error() {
		k.a.log.Warn("the fleet's record of a guest is not as the guest is", "instance", id, "error", err)
	}
	k.failed[id] = err
}

// condition says how this host stands to the fleet's records; false where it keeps none.
func (k *keeper) condition() (api.Condition, bool) {
	h := k.a.host
	k.mu.Lock()
	defer k.mu.Unlock()
	// Whether a Placement that was never heard keeps records nobody knows, and nobody waits for.
	if k.records == nil && k.removed == "" || k.a.observing() || (k.absent || k.answered == 0) && !k.known && k.kind != kindEtcd {
		return api.Condition{}, false
	}
	var reasons []fault.Reason
	var words []string
	say := func(detail string, r ...fault.Reason) { words, reasons = append(words, detail), append(reasons, r...) }
	if k.err != nil {
		kind := fault.KindOf(k.err)
		detail := "the fleet's records are not kept: " + k.err.Error()
		if kind == fault.Unavailable || kind == fault.InDoubt {
			detail = "the store of the fleet's records does not answer: " + k.err.Error()
		}
		say(detail, fault.Reason{Code: "fleet_store", Message: detail, Change: "see to the store (" + k.kind + "): guests run on, and cannot be evacuated meanwhile"})
	}
	name := func(id string) string {
		if inst, ok := k.a.tracker.Instance(id); ok {
			return inst.Name
		}
		return id
	}
	if !h.BootConfirmed() {
		var wait []string
		for _, inst := range h.Owned() {
			if why, waits := h.Unconfirmed(inst.UUID); waits {
				wait = append(wait, inst.Name)
				reasons = append(reasons, fault.Reason{
					Code: "not_confirmed", Message: "guest " + inst.Name + " is not started in this boot yet: " + why,
					Change: `bring the store back, or, where it surely runs nowhere else, berth instance start ` + inst.Name + ` --force-owner --reason "how you know"`,
				})
			}
		}
		if len(wait) > 0 {
			say(fmt.Sprintf("this boot is not confirmed, guests that wait %d", len(wait)))
		}
	}
	switch {
	case k.unproven && k.was != "" && k.answered > 0:
		words := "this host had its records in the store " + k.was + ", and the store that it has now (" + k.kind + ") does not tell which one it is"
		say(words, fault.Reason{
			Code: "store_unproven", Message: words, Have: k.kind, Want: k.was,
			Change: "upgrade the server that keeps the records (berth placement), or put [fleet] back as it was",
		})
	case k.unproven:
		words := "the store of the fleet's records was replaced, emptied, restored or rolled back; hosts that have not written theirs again: " + cmp.Or(strings.Join(k.missing, ", "), "not read yet")
		say(words, fault.Reason{
			Code: "store_unproven", Message: words, Have: strings.Join(k.missing, ", "),
			Change: `start the agents of these hosts; of one that is gone, berth host declare-dead HOST --reason "how you know"`,
		})
	}
	held := h.Held()
	for _, id := range slices.Sorted(maps.Keys(held)) {
		if k.waiting[id] {
			say("instance "+name(id)+" waits for a witness: "+held[id], fault.Reason{
				Code: "not_confirmed", Message: "instance " + name(id) + " is not started in this boot yet: " + held[id],
				Change: `wait, or, where it surely runs nowhere else, berth instance start ` + name(id) + ` --force-owner --reason "how you know"`,
			})
			continue
		}
		say("guest "+name(id)+" is in doubt: "+held[id], fault.Reason{
			Code: "in_doubt", Message: "guest " + name(id) + ": " + held[id],
			Change: `look for it on the other hosts; where it is nowhere else, berth instance start ` + name(id) + ` --force-owner --reason "how you know"`,
		})
	}
	for _, id := range slices.Sorted(maps.Keys(k.giving)) {
		reasons = append(reasons, fault.Reason{Code: "gave_way", Message: k.giving[id]})
	}
	for _, o := range k.old.unused {
		for _, f := range o.Files {
			reasons = append(reasons, fault.Reason{
				Code: "old_disk", Message: "disk " + f.Path + " of instance " + o.Name + " is still here, though host " + o.To + " has that instance now: nothing on this host shows that its data is there too",
				Have: f.Path, Want: o.To, Change: k.old.remedies[f.Path],
			})
		}
	}
	if len(k.orphans) > 0 {
		say("guests that the records have here, and this ledger does not know: "+strings.Join(k.orphans, ", "), fault.Reason{
			Code: "record_unknown", Message: "the records have guests on this host that its ledger does not know: " + strings.Join(k.orphans, ", "),
			Change: "the ledger is older than the records, or the host was made anew: berth instance adopt what is here",
		})
	}
	if len(k.unreadable) > 0 {
		all := strings.Join(k.unreadable, ", ")
		say("records that cannot be read: "+all, fault.Reason{
			Code: fleet.ReasonUnreadable, Message: "the store has records that cannot be read, and are passed over: " + all, Have: all,
			Change: "berth host list shows all others; see to the store (" + k.kind + "): of a guest whose record is one of them nobody knows whose it is",
		})
	}
	if n := len(k.failed); n > 0 && k.err == nil {
		id := slices.Sorted(maps.Keys(k.failed))[0]
		change := "it is tried again by itself"
		for _, r := range fault.ReasonsOf(k.failed[id]) {
			if r.Code == permit.ReasonNotYours {
				change = cmp.Or(r.Change, change)
			}
		}
		say(fmt.Sprintf("records that are not as the guests are %d, the first of %s: %v", n, name(id), k.failed[id]), fault.Reason{
			Code: "record_behind", Message: "the record of guest " + name(id) + ": " + k.failed[id].Error(), Change: change,
		})
	}
	if len(words) == 0 && k.records == nil {
		return api.Condition{}, false
	}
	if len(words) == 0 {
		detail := k.kind + ", records of guests " + fmt.Sprint(k.kept)
		if len(k.giving) > 0 {
			detail += fmt.Sprintf("; evacuated guests to be cleaned up %d", len(k.giving))
		}
		if len(k.old.unused) > 0 {
			detail += fmt.Sprintf("; instances that were evacuated and whose old disks are here %d", len(k.old.unused))
		}
		return api.Condition{Name: "fleet", Health: api.HealthOK, Detail: detail, Reasons: reasons}, true
	}
	return api.Degraded("fleet", strings.Join(words, "; "), reasons...), true
}
