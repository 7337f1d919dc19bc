package vanished

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
)

// Processes finds the QEMU processes of an instance.
type Processes interface {
	// Of returns their pids, by the uuid in their command lines.
	Of(uuid string) ([]int, error)
}

// Options are what a Watch asks.
type Options struct {
	Runtime     runtime.Runtime
	Definitions driver.DefinitionReader // nil where the hypervisor has no such files: events alone decide
	Processes   Processes               // nil: no process is looked for
	Tracker     *claims.Tracker
	Logger      *slog.Logger
}

// Held is an instance that has no domain, and is kept.
type Held struct {
	Instance
	Reason fault.Reason
}

// Watch collects the facts of missing instances. It is safe for many goroutines; the zero
// value is not ready, see New.
type Watch struct {
	o Options

	// changing makes changes of the record come one after another. Durable writes happen under
	// it, nothing else; taken before mu.
	changing runtime.Lock

	// mu guards what follows; nothing but map work happens under it.
	mu         sync.Mutex
	absent     map[string]time.Duration // instances without a domain, since when on the boot clock
	undefined  map[string]bool          // an event told of it
	persistent map[string]bool          // a persistent domain was seen
	transient  map[string]bool          // a transient domain was seen, and never a persistent one
	ended      map[string]bool          // its end was told, and no start since
	left       map[string]bool          // its end by a migration was told, and no start since
	held       map[string]Held
	seen       bool            // the folder was seen whole on this connection
	looked     map[string]bool // transient domains that were looked for in the folder on this connection
}

// New makes a Watch.
func New(o Options) *Watch {
	w := &Watch{o: o, absent: map[string]time.Duration{}, persistent: map[string]bool{}, transient: map[string]bool{}, held: map[string]Held{}}
	w.Resync()
	return w
}

// Resync forgets what events told: the connection is another one, or events were lost.
func (w *Watch) Resync() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.undefined, w.ended, w.left, w.seen = map[string]bool{}, map[string]bool{}, map[string]bool{}, false
	w.looked = map[string]bool{}
}

// Event takes one of the hypervisor's events.
func (w *Watch) Event(e driver.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch e.Kind {
	case driver.EventUndefined:
		// A rename is told as an undefine of the old name and a definition of the new one.
		if e.Detail != "renamed" {
			w.undefined[e.UUID] = true
			delete(w.persistent, e.UUID)
		}
	case driver.EventDefined:
		delete(w.undefined, e.UUID)
	case driver.EventStarted:
		delete(w.ended, e.UUID)
		delete(w.left, e.UUID)
	case driver.EventStopped, driver.EventCrashed:
		w.ended[e.UUID] = true
		if e.Detail == string(driver.ReasonMigrated) {
			w.left[e.UUID] = true // `virsh migrate --undefinesource` tells of no undefine
		}
	}
}

// Domain takes a domain that the hypervisor has.
func (w *Watch) Domain(d driver.Domain) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.absent, d.UUID)
	delete(w.held, d.UUID)
	switch {
	case d.Persistent:
		w.persistent[d.UUID] = true
		delete(w.transient, d.UUID)
	case !w.persistent[d.UUID]:
		w.transient[d.UUID] = true
	}
}

// Missing notes that an instance has no domain, and reports whether that is so for at least
// the time between two reads which must agree.
func (w *Watch) Missing(uuid string, now, agree time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	since, was := w.absent[uuid]
	if !was {
		w.absent[uuid] = now
		return false
	}
	return now-since >= agree
}

// Unknown takes back Missing: what was read before a read that failed is no first of two.
func (w *Watch) Unknown(uuid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.absent, uuid)
}

// Forget drops what is known of an instance.
func (w *Watch) Forget(uuid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range []map[string]bool{w.undefined, w.persistent, w.transient, w.ended, w.left, w.looked} {
		delete(m, uuid)
	}
	delete(w.absent, uuid)
	delete(w.held, uuid)
}

// Retain forgets every instance that nobody manages any more.
func (w *Watch) Retain(managed func(uuid string) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range []map[string]bool{w.undefined, w.persistent, w.transient, w.ended, w.left, w.looked} {
		maps.DeleteFunc(m, func(uuid string, _ bool) bool { return !managed(uuid) })
	}
	maps.DeleteFunc(w.held, func(uuid string, _ Held) bool { return !managed(uuid) })
}

// Held gives the instances that are kept without a domain, by name.
func (w *Watch) Held() []Held {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.SortedFunc(maps.Values(w.held), func(a, b Held) int { return strings.Compare(a.Name+"\x00"+a.UUID, b.Name+"\x00"+b.UUID) })
}

// record is what outlives the agent.
type record struct {
	// Folder is the identity of the folder of definitions when it was last seen whole.
	Folder string `json:"folder,omitempty"`
	// Together are the instances that vanished at once without an event. Each waits for its
	// domain, its undefine, or an operator, also when the others have gone.
	Together []string `json:"together,omitempty"`
	// Transient are the instances that run without a persistent definition, by libvirt and by the
	// folder. No undefine tells of their end, and a host that lost its power tells of no end at all.
	Transient []string `json:"transient,omitempty"`
}

func ref() migration.Ref {
	return migration.Ref{Migration: "definitions", Instance: "host", Attempt: 1, Step: "folder"}
}

func (w *Watch) read() (record, error) {
	var r record
	_, err := w.o.Tracker.Recall(ref(), &r)
	return r, err
}

// Whole remembers the folder of definitions when a managed persistent domain has its file
// there: once for each connection, and durably only where it is another one than before. Of a
// transient domain it remembers that the same folder has no file of it.
func (w *Watch) Whole(ctx context.Context, d driver.Domain) error {
	if w.o.Definitions == nil {
		return nil
	}
	if !d.Persistent {
		return w.noteTransient(ctx, d)
	}
	r, err := w.read()
	if err != nil {
		return err
	}
	if slices.Contains(r.Transient, d.UUID) { // it has a definition by now
		if err := w.change(ctx, func(r *record) { r.Transient = without(r.Transient, d.UUID) }); err != nil {
			return err
		}
	}
	w.mu.Lock()
	seen := w.seen
	w.mu.Unlock()
	if seen {
		return nil
	}
	now, err := w.o.Definitions.Definitions(ctx)
	if err != nil || !holds(now, d) {
		return nil // it is looked at again; without it an instance is kept rather than released
	}
	err = w.change(ctx, func(r *record) { r.Folder = now.Identity })
	if err == nil {
		w.mu.Lock()
		w.seen = true
		w.mu.Unlock()
	}
	return err
}

// noteTransient looks once on each connection. A folder that is not the one that was seen whole
// tells nothing: behind it a persistent domain that runs looks transient.
func (w *Watch) noteTransient(ctx context.Context, d driver.Domain) error {
	w.mu.Lock()
	skip := w.looked[d.UUID] || w.persistent[d.UUID]
	w.looked[d.UUID] = true
	w.mu.Unlock()
	if skip {
		return nil
	}
	now, err := w.o.Definitions.Definitions(ctx)
	if err != nil || holds(now, d) {
		return nil
	}
	return w.change(ctx, func(r *record) {
		if r.Folder != "" && r.Folder != now.Identity || slices.Contains(r.Transient, d.UUID) {
			return
		}
		r.Transient = slices.DeleteFunc(slices.Clone(r.Transient), func(uuid string) bool {
			_, known := w.o.Tracker.Instance(uuid)
			return !known
		})
		r.Transient = append(r.Transient, d.UUID)
		slices.Sort(r.Transient)
	})
}

func without(uuids []string, uuid string) []string {
	return slices.DeleteFunc(slices.Clone(uuids), func(u string) bool { return u == uuid })
}

// change writes the record where f makes it another.
func (w *Watch) change(ctx context.Context, f func(*record)) error {
	if err := w.changing.Lock(ctx, w.o.Runtime); err != nil {
		return err
	}
	defer w.changing.Unlock()
	was, err := w.read()
	if err != nil {
		return err
	}
	now := was
	f(&now)
	if now.Folder == was.Folder && slices.Equal(now.Together, was.Together) && slices.Equal(now.Transient, was.Transient) {
		return nil
	}
	return w.o.Tracker.Remember(ctx, ref(), now)
}

// Judge decides about an instance that is missing in listed. missing are all such instances of
// the ledger, this one included; known are the names of all of them. It reads the folder of
// definitions and the host's processes, and notes what is kept.
func (w *Watch) Judge(ctx context.Context, inst Instance, listed []driver.Domain, missing []Instance, known []string) (Action, error) {
	r, err := w.read()
	if err != nil {
		return Keep, err
	}
	var f Facts
	var silent []string // without an event
	w.mu.Lock()
	ended := func(uuid string) bool {
		return w.left[uuid] || w.transient[uuid] && w.ended[uuid] || slices.Contains(r.Transient, uuid)
	}
	f.Undefined, f.Ended = w.undefined[inst.UUID], ended(inst.UUID)
	for _, m := range missing {
		if !w.undefined[m.UUID] && !ended(m.UUID) {
			silent = append(silent, m.UUID)
		}
	}
	w.mu.Unlock()
	f.Alone = len(silent) < 2 && !slices.Contains(r.Together, inst.UUID)
	l := w.look(ctx, inst, listed, known, r)
	f.Process, f.Definition = l.process, l.definition
	action, cause := Decide(f)
	if len(silent) > 1 {
		if err := w.together(ctx, silent, missing); err != nil {
			return Keep, err
		}
	}
	if action == Keep {
		w.hold(inst, l.reason(cause, inst))
	}
	return action, nil
}

// Absent is nil where no process of a missing instance lives, and the folder of definitions is
// whole and has no file of it; else fault.InDoubt with the reason. For a host that gives the
// instance to another, which says that it runs there.
func (w *Watch) Absent(ctx context.Context, inst Instance, listed []driver.Domain, known []string) error {
	r, err := w.read()
	if err != nil {
		return err
	}
	return w.absentBy(ctx, inst, listed, known, r)
}

// Gone is Absent of an instance that is elsewhere by this host's own ledger. Where the folder was never
// seen whole, no definition of an instance was ever in it.
func (w *Watch) Gone(ctx context.Context, inst Instance, listed []driver.Domain, known []string) error {
	r, err := w.read()
	if err != nil {
		return err
	}
	if r.Folder == "" {
		r.Transient = append(slices.Clone(r.Transient), inst.UUID) // looked for in the folder that is there
	}
	err = w.absentBy(ctx, inst, listed, known, r)
	reasons := fault.ReasonsOf(err)
	for i, why := range reasons { // it is not this host's to delete
		switch Cause(why.Code) {
		case CausePresent:
			reasons[i].Change = "virsh define " + why.Have + ", or rm " + why.Have
		case CauseUnreadable:
			reasons[i].Change = "look whether " + cmp.Or(why.Have, "libvirt's folder of definitions") + " is mounted and whole, then systemctl restart libvirtd; where it was made anew, virsh define FILE with any domain"
		case CauseProcesses:
			reasons[i].Change = "let the agent read /proc"
		}
	}
	if len(reasons) == 0 {
		return err
	}
	return fault.Refuse(fault.KindOf(err), "", reasons...)
}

func (w *Watch) absentBy(ctx context.Context, inst Instance, listed []driver.Domain, known []string, r record) error {
	l := w.look(ctx, inst, listed, known, r)
	w.mu.Lock()
	undefined := w.undefined[inst.UUID]
	w.mu.Unlock()
	if action, cause := Decide(Facts{Process: l.process, Undefined: undefined, Definition: l.definition, Ended: true}); action == Keep {
		return fault.Refuse(fault.InDoubt, "", l.reason(cause, inst))
	}
	return nil
}

// NeverDefined is nil where the folder of definitions is whole and has no file of an instance that
// the hypervisor was asked to define, and does not list; else fault.InDoubt with the reason. folder
// is the folder's identity when it was asked; empty where that was not read. It is nil, too, where
// the hypervisor has no such files.
func (w *Watch) NeverDefined(ctx context.Context, inst Instance, folder string, listed []driver.Domain, known []string) error {
	if w.o.Definitions == nil {
		return nil
	}
	r, err := w.read()
	if err != nil {
		return err
	}
	r.Folder = cmp.Or(folder, r.Folder)
	l := w.look(ctx, inst, listed, known, r)
	action, cause := Decide(Facts{Process: l.process, Definition: l.definition, Ended: true})
	if action == Release {
		return nil
	}
	why := l.reason(cause, inst)
	// It is not in the ledger: nobody can delete it there.
	if give := "virsh undefine " + inst.Name + " where it is to be given up"; cause == CausePresent {
		why.Change = "virsh define " + l.folder + "/" + inst.Name + ".xml, which names the fault in the file; then " + give
	} else if cause == CauseUnreadable {
		why.Change = "look whether " + cmp.Or(l.folder, "/etc/libvirt/qemu") + " is mounted and whole, then systemctl restart libvirtd; then " + give
	}
	return fault.Refuse(fault.InDoubt, "", why)
}

// looked is what the folder and the processes tell of an instance.
type looked struct {
	process    Process
	definition Definition
	folder     string
	why        string // what could not be read
	pids       []int
}

func (l looked) reason(cause Cause, inst Instance) fault.Reason {
	return reasonOf(cause, inst, l.folder, l.why, l.pids)
}

func (w *Watch) look(ctx context.Context, inst Instance, listed []driver.Domain, known []string, r record) looked {
	l := looked{definition: DefinitionUnknown}
	if w.o.Processes != nil {
		var err error
		switch l.pids, err = w.o.Processes.Of(inst.UUID); {
		case err != nil:
			l.process, l.why = ProcessUnknown, err.Error()
		case len(l.pids) > 0:
			l.process = ProcessLives
		}
	}
	if w.o.Definitions == nil {
		return l
	}
	now, err := w.o.Definitions.Definitions(ctx)
	l.folder = now.Folder
	if err != nil {
		if l.why == "" {
			l.why = err.Error()
		}
		return l
	}
	before := r.Folder
	if before == "" && slices.Contains(r.Transient, inst.UUID) {
		before = now.Identity // no file of it is looked for
	}
	l.definition = Look(now, inst, listed, known, before)
	return l
}

// together remembers instances that are missing at once, and drops those that are not any more.
func (w *Watch) together(ctx context.Context, silent []string, missing []Instance) error {
	is := func(uuid string) bool {
		return slices.ContainsFunc(missing, func(i Instance) bool { return i.UUID == uuid })
	}
	return w.change(ctx, func(r *record) {
		now := slices.DeleteFunc(slices.Concat(r.Together, silent), func(uuid string) bool { return !is(uuid) })
		slices.Sort(now)
		r.Together = slices.Compact(now)
	})
}

// Returned drops an instance that has a domain again from those that vanished together.
func (w *Watch) Returned(ctx context.Context, uuid string) error {
	r, err := w.read()
	if err != nil || !slices.Contains(r.Together, uuid) {
		return err
	}
	return w.change(ctx, func(r *record) {
		r.Together = without(r.Together, uuid)
	})
}

// hold notes why an instance is kept, and logs each reason once.
func (w *Watch) hold(inst Instance, why fault.Reason) {
	w.mu.Lock()
	was, held := w.held[inst.UUID]
	w.held[inst.UUID] = Held{inst, why}
	w.mu.Unlock()
	if !held || was.Reason.Code != why.Code {
		w.o.Logger.Warn("the hypervisor does not list an instance; nothing of it is released", "instance", inst.UUID, "name", inst.Name, "reason", why.Message)
	}
}

// reasonOf says why an instance is kept, and what to do.
func reasonOf(cause Cause, inst Instance, folder, why string, pids []int) fault.Reason {
	r := fault.Reason{Code: string(cause), Want: inst.UUID}
	gone := "berth instance delete " + inst.Name + ", if it is gone for good"
	switch cause {
	case CauseProcess:
		list := make([]string, len(pids))
		for i, p := range pids {
			list[i] = strconv.Itoa(p)
		}
		r.Message = fmt.Sprintf("libvirt does not list instance %s, and its QEMU process %s lives", inst.Name, strings.Join(list, " and "))
		r.Have, r.Change = strings.Join(list, " "), "shut it down from inside, or kill "+strings.Join(list, " ")
	case CauseProcesses:
		r.Message = fmt.Sprintf("libvirt does not list instance %s, and whether its QEMU process lives cannot be read: %s", inst.Name, why)
		r.Change = "let the agent read /proc; or " + gone
	case CausePresent:
		file := folder + "/" + inst.Name + ".xml"
		r.Message = fmt.Sprintf("libvirt does not list instance %s, and its definition is still in %s: libvirt did not load it", inst.Name, folder)
		r.Have, r.Change = file, "virsh define "+file+", which names the fault in the file; or "+gone
	case CauseUnreadable:
		r.Message = fmt.Sprintf("libvirt does not list instance %s, and the folder of its definitions cannot tell whether it was undefined", inst.Name)
		if why != "" {
			r.Message += ": " + why
		}
		r.Have, r.Change = folder, "look whether "+folder+" is mounted and whole, then systemctl restart libvirtd; or "+gone
		if folder == "" {
			r.Change = gone
		}
	case CauseTogether:
		r.Message = fmt.Sprintf("libvirt does not list instance %s; more than one instance vanished at once, and no event told of an undefine", inst.Name)
		r.Have, r.Change = folder, "look for the definitions that are missing in "+folder+", then systemctl restart libvirtd; or "+gone
	}
	return r
}
