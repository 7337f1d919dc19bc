package openstack

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"berth/agent/api"
	hostverbs "berth/agent/host"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/migration"
	pc "berth/placementclient"
	"berth/topology"
)

// door stands between agents and a Placement.
type door struct {
	next http.Handler

	mu sync.Mutex // guards what follows
	// meet is what becomes of the next write of allocations; nil lets it pass.
	meet   func(w http.ResponseWriter, r *http.Request)
	closed bool
	met    int // how often meet was
	shutTo int // how many requests about allocations found it closed
}

func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	meet, closed := d.meet, d.closed
	writes := strings.HasPrefix(r.URL.Path, "/allocations") && r.Method != http.MethodGet
	if writes && meet != nil && !closed {
		d.meet = nil
		d.met++
	}
	if closed && strings.HasPrefix(r.URL.Path, "/allocations") {
		d.shutTo++
	}
	d.mu.Unlock()
	switch {
	case closed:
		panic(http.ErrAbortHandler) // the connection ends without an answer
	case writes && meet != nil:
		meet(w, r)
	default:
		d.next.ServeHTTP(w, r)
	}
}

func (d *door) await(meet func(w http.ResponseWriter, r *http.Request)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.meet, d.met = meet, 0
}

func (d *door) wasMet() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.met > 0
}

func (d *door) shut(closed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed, d.shutTo = closed, 0
}

func (d *door) refused() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.shutTo > 0
}

// TestStories_HoldTheSameInBoth plays every story of moves that have their guest while it
// is off, by whole agents, over OpenStack's Placement and over ours: what the two
// consumers hold after each stage, and how each ends when a write to Placement goes wrong.
func TestStories_HoldTheSameInBoth(t *testing.T) {
	t.Parallel()
	theirs := StartPlacement(t, PlacementOptions{})
	ours := embedded(t)
	var want, got []stage
	t.Run("both", func(t *testing.T) {
		t.Run("OpenStack's", func(t *testing.T) { t.Parallel(); want = stories(t, theirs.URL) })
		t.Run("ours", func(t *testing.T) { t.Parallel(); got = stories(t, ours.URL) })
	})
	t.Logf("%d stages of stories", len(want))
	if d := gocmp.Diff(want, got); d != "" {
		t.Errorf("Placement holds (-OpenStack's +ours)\n%s", d)
	}
}

// stage is what one story holds at one point: by instance and its migration, host and
// class.
type stage struct {
	Story, At string
	Outcome   migration.Outcome
	Held      map[string]int64
}

var (
	wide = topology.Flavor{Name: "wide", VCPUs: 2, MemoryMB: 256, DiskGB: 1}
	slim = topology.Flavor{Name: "slim", VCPUs: 1, MemoryMB: 64, DiskGB: 1}
)

// life is one story: what is asked for, and what is said when it is finished.
type life struct {
	name    string
	flavor  topology.Flavor // of the guest
	ask     api.Migrate
	ending  migration.Stage // none for a story without
	fault   func(p *agents, d *door, guest, moved string) func(http.ResponseWriter, *http.Request)
	away    bool   // Placement is, from the ending on, for a while
	by      string // whose agent conducts it; empty for the guest's own
	outcome migration.Outcome
}

func lives(image string) []life {
	cold := func(to string) api.Migrate {
		return api.Migrate{MigrationType: migration.TypeMigration, Destination: to}
	}
	resize := func(to string, f topology.Flavor) api.Migrate {
		return api.Migrate{MigrationType: migration.TypeResize, Destination: to, Flavor: &f}
	}
	apart := func(m api.Migrate) api.Migrate {
		m.ShareNothing = true
		return m
	}
	rebuild := api.Migrate{MigrationType: migration.TypeRebuild, Image: &migration.Image{Path: image, Format: "raw"}}
	const confirm, revert = migration.StageConfirm, migration.StageRevert
	return []life{
		{name: "cold migration, confirmed", flavor: small, ask: cold("host-b"), ending: confirm, outcome: migration.OutcomeCompleted},
		{name: "cold migration, reverted", flavor: small, ask: cold("host-b"), ending: revert, outcome: migration.OutcomeReverted},
		{name: "cold migration, chosen", flavor: small, ask: cold(""), ending: confirm, outcome: migration.OutcomeCompleted},
		{name: "resize, confirmed", flavor: small, ask: resize("host-b", wide), ending: confirm, outcome: migration.OutcomeCompleted},
		{name: "resize, reverted", flavor: small, ask: resize("host-b", wide), ending: revert, outcome: migration.OutcomeReverted},
		{name: "resize in place, confirmed", flavor: small, ask: resize("host-a", wide), ending: confirm, outcome: migration.OutcomeCompleted},
		{name: "resize in place, reverted", flavor: small, ask: resize("host-a", wide), ending: revert, outcome: migration.OutcomeReverted},
		{name: "resize in place, smaller, reverted", flavor: small, ask: resize("host-a", slim), ending: revert, outcome: migration.OutcomeReverted},
		{name: "rebuild", flavor: small, ask: rebuild, outcome: migration.OutcomeCompleted},
		{name: "share nothing, confirmed", flavor: small, ask: apart(resize("host-b", wide)), by: "host-c", ending: confirm, outcome: migration.OutcomeCompleted},
		{name: "share nothing, reverted", flavor: small, ask: apart(cold("host-b")), by: "host-c", ending: revert, outcome: migration.OutcomeReverted},

		{name: "cold migration, swap refused", flavor: small, ask: cold("host-b"), outcome: migration.OutcomeUndone, fault: noRoom},
		{name: "resize in place, swap refused", flavor: small, ask: resize("host-a", wide), outcome: migration.OutcomeUndone, fault: noRoom},
		{name: "cold migration, answer of the swap lost", flavor: small, ask: cold("host-b"), ending: confirm, fault: lostAnswer},
		{name: "resize in place, answer of the swap lost", flavor: small, ask: resize("host-a", wide), ending: revert, fault: lostAnswer},
		{name: "resize, conflict", flavor: small, ask: resize("host-b", wide), ending: confirm, fault: conflict},
		{name: "resize, confirmed while Placement is away", flavor: small, ask: resize("host-b", wide), ending: confirm, away: true, outcome: migration.OutcomeCompleted},
		{name: "resize, reverted while Placement is away", flavor: small, ask: resize("host-b", wide), ending: revert, away: true, outcome: migration.OutcomeReverted},
		{name: "resize in place, reverted while Placement is away", flavor: small, ask: resize("host-a", wide), ending: revert, away: true, outcome: migration.OutcomeReverted},
	}
}

// noRoom is the answer of a Placement whose room another was quicker to take.
func noRoom(*agents, *door, string, string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusConflict)
		_, _ = w.Write([]byte(`{"errors":[{"status":409,"title":"Conflict","detail":"There was a conflict when trying to complete your request.\n\n Unable to allocate inventory: Unable to create allocation for 'VCPU' on resource provider. The requested amount would exceed the capacity.  ","code":"placement.undefined_code"}]}`))
	}
}

// lostAnswer has the write happen, and its connection end without an answer.
func lostAnswer(_ *agents, d *door, _, _ string) func(http.ResponseWriter, *http.Request) {
	return func(_ http.ResponseWriter, r *http.Request) {
		d.next.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	}
}

// conflict has another writer write the same allocations first.
func conflict(p *agents, d *door, guest, _ string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		now, err := p.place.Allocations(p.Context(), guest)
		if err == nil {
			err = p.place.PutAllocations(p.Context(), guest, now)
		}
		if err != nil {
			p.Errorf("another writer: %v", err)
		}
		d.next.ServeHTTP(w, r)
	}
}

// stories plays them all over one Placement: those in which nothing goes wrong at once,
// the others after one another, since they have one door.
func stories(t *testing.T, placement string) []stage {
	target, err := url.Parse(placement)
	must(t, err)
	me, err := user.Current()
	must(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = &http.Transport{DisableKeepAlives: true}
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { panic(http.ErrAbortHandler) }
	d := &door{next: proxy}
	front := httptest.NewServer(d)
	t.Cleanup(front.Close)
	operator, err := pc.New(pc.Config{URL: placement, Token: "admin"})
	must(t, err)
	t.Cleanup(operator.Close)
	p := startAgents(t, operator, func(c *config.Config) {
		c.Placement.URL = front.URL
		c.Placement.CPURatio = 64 // room for all on a small machine
		// The third conducts, and takes nobody in.
		c.Rights.Conduct = []string{"host:host-c"}
		if c.Agent.Name == "host-c" {
			c.Rights.ShareNothing = []string{"user:" + me.Username}
			c.Placement.CPURatio = 0.01
		}
	}, "host-a", "host-b", "host-c")
	image := filepath.Join(filepath.Dir(p.kernel), "image.raw")
	must(t, os.WriteFile(image, []byte("an image"), 0o644))
	must(t, os.Truncate(image, 1<<20))

	all := lives(image)
	out := make([][]stage, len(all))
	guests := make([]string, len(all))
	for i, l := range all {
		guests[i] = p.plain(fmt.Sprintf("guest-%d", i), l)
	}
	t.Run("at once", func(t *testing.T) {
		for i, l := range all {
			if l.fault == nil && !l.away {
				t.Run(l.name, func(t *testing.T) {
					t.Parallel()
					out[i] = p.of(t).live(d, l, guests[i])
				})
			}
		}
	})
	for i, l := range all {
		if l.fault != nil || l.away {
			t.Run(l.name, func(t *testing.T) { out[i] = p.of(t).live(d, l, guests[i]) })
		}
	}
	return slices.Concat(out...)
}

// of are the same agents, in another test.
func (p *agents) of(t *testing.T) *agents {
	q := *p
	q.T = t
	return &q
}

// plain creates a story's guest: one with a disk where it is to be rebuilt.
func (p *agents) plain(name string, l life) string {
	p.Helper()
	r := api.CreateInstance{}
	r.Name, r.Kernel, r.Start, r.Flavor = name, p.kernel, true, l.flavor
	if l.ask.MigrationType == migration.TypeRebuild {
		r.Disks = []hostverbs.CreateDisk{{SizeGB: 1, Format: "raw"}}
	}
	in, err := p.clients["host-a"].CreateInstance(p.Context(), r)
	must(p, err)
	return in.UUID
}

// live plays one story and gives its stages.
func (p *agents) live(d *door, l life, guest string) (out []stage) {
	a, ctx := p.clients[cmp.Or(l.by, "host-a")], p.Context()
	moved := ""
	see := func(at string, m migration.Migration, want map[string]int64) {
		held := map[string]int64{}
		p.until(l.name+": Placement holds what it should, "+at, func() bool {
			clear(held)
			all := p.held()
			for who, consumer := range map[string]string{"instance": guest, "migration": moved} {
				for rp, r := range all[consumer] {
					for class, n := range r {
						host, _, _ := strings.Cut(rp, "_")
						held[who+" "+host+" "+class] += n
					}
				}
			}
			return want == nil || gocmp.Equal(want, held)
		})
		out = append(out, stage{l.name, at, m.Outcome, maps.Clone(held)})
	}
	before := amounts("instance", "host-a", l.flavor)
	see("before", migration.Migration{}, before)
	if l.fault != nil {
		d.await(l.fault(p, d, guest, moved))
	}
	l.ask.Instance = guest
	m, err := a.Migrate(ctx, l.ask)
	if err != nil {
		p.Errorf("%s: %v", l.name, err)
		return out
	}
	moved = m.UUID
	to, now := cmp.Or(l.ask.Destination, "host-b"), l.flavor
	if l.ask.Flavor != nil {
		now = *l.ask.Flavor
	}
	if l.ask.MigrationType == migration.TypeRebuild {
		to = "host-a"
	}
	look := func(what string, ok func(migration.Migration) bool) {
		p.until(l.name+": "+what, func() bool {
			if m, err = a.Migration(ctx, moved); fault.KindOf(err) == fault.Unavailable {
				return false
			}
			must(p, err)
			return ok(m)
		})
	}
	look("it is finished, or over", func(m migration.Migration) bool { return m.Done() || m.Status == migration.StatusFinished })
	if l.fault != nil && !d.wasMet() {
		p.Errorf("%s: nothing was written to Placement that could go wrong", l.name)
	}
	after := amounts("instance", to, now)
	if !m.Done() {
		both := maps.Clone(after)
		for class, n := range amounts("migration", "host-a", l.flavor) {
			if to == "host-a" {
				n -= after[strings.Replace(class, "migration", "instance", 1)]
			}
			if n > 0 {
				both[class] = n
			}
		}
		see("finished", m, both)
		if l.away {
			d.shut(true)
		}
		word := a.ConfirmMigration
		if l.ending == migration.StageRevert {
			word = a.RevertMigration
		}
		if _, err := word(ctx, moved); err != nil {
			p.Errorf("%s: %s: %v", l.name, l.ending, err)
			return out
		}
		if l.away {
			look("it waits for Placement", func(m migration.Migration) bool { return strings.Contains(m.Step, "allocation") && d.refused() })
			d.shut(false)
		}
		look("it ends", migration.Migration.Done)
	}
	if l.outcome != "" && m.Outcome != l.outcome {
		p.Errorf("%s: %s, want %s: %s", l.name, m.Outcome, l.outcome, words(m))
	}
	switch m.Outcome {
	case migration.OutcomeCompleted:
		see("over", m, after)
	default:
		see("over", m, before)
	}
	return out
}

// amounts are what a consumer holds of a host for a guest of a flavor.
func amounts(who, host string, f topology.Flavor) map[string]int64 {
	r := f.Resources()
	return map[string]int64{who + " " + host + " VCPU": int64(r.VCPUs), who + " " + host + " MEMORY_MB": r.MemoryMB, who + " " + host + " DISK_GB": r.DiskGB}
}
