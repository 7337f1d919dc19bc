package api_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"berth/agent/api"
	"berth/agent/host"
	"berth/agent/host/fileusers"
	"berth/claims"
	"berth/internal/fault"
	"berth/internal/pki"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/conductor"
	"berth/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeHost answers the host verbs and remembers what it was asked.
type fakeHost struct {
	name string

	mu    sync.Mutex
	calls []string
	refs  []migration.Ref
	fail  error            // answered by every verb that changes something
	gate  chan struct{}    // when set, RenewClaim waits for it
	enter chan struct{}    // when set, told that RenewClaim began
	seen  migration.Commit // what AcceptToken was given
	piece migration.DiskPiece
}

func (h *fakeHost) note(name string, ref migration.Ref) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, name)
	h.refs = append(h.refs, ref)
	return h.fail
}

func (h *fakeHost) count(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, c := range h.calls {
		if c == name {
			n++
		}
	}
	return n
}

func (h *fakeHost) Describe(context.Context) (migration.Description, error) {
	return migration.Description{Name: h.name, Mode: "manage", LibvirtVersion: 9000000}, nil
}

func (h *fakeHost) Inspect(_ context.Context, ref migration.Ref) (migration.Guest, error) {
	return migration.Guest{UUID: ref.Instance, XML: "<domain>&</domain>"}, h.note("Inspect", ref)
}

func (h *fakeHost) CheckSource(_ context.Context, r migration.Ref, a migration.CheckAnswer) (migration.SourceAnswer, error) {
	return migration.SourceAnswer{CopyDisks: []string{a.Disks[0].Target}}, h.note("CheckSource", r)
}

func (h *fakeHost) RecordContext(_ context.Context, r migration.Ref, _ migration.Context) error {
	return h.note("RecordContext", r)
}
func (h *fakeHost) DropContext(_ context.Context, r migration.Ref) error {
	return h.note("DropContext", r)
}
func (h *fakeHost) StartStream(_ context.Context, r migration.Ref, _ migration.Stream) error {
	return h.note("StartStream", r)
}

func (h *fakeHost) StreamStatus(_ context.Context, r migration.Ref) (migration.StreamStatus, error) {
	return migration.StreamStatus{InFlight: true, Progress: migration.Progress{MemoryTotal: 1 << 40, Elapsed: time.Second}}, h.note("StreamStatus", r)
}
func (h *fakeHost) TuneStream(_ context.Context, r migration.Ref, _ migration.Tuning) error {
	return h.note("TuneStream", r)
}

func (h *fakeHost) Commit(_ context.Context, r migration.Ref) (migration.Commit, error) {
	return migration.Commit{Instance: r.Instance, Migration: r.Migration, Attempt: r.Attempt, Epoch: 7}, h.note("Commit", r)
}
func (h *fakeHost) Reclaim(_ context.Context, r migration.Ref) error { return h.note("Reclaim", r) }
func (h *fakeHost) CleanUpSource(_ context.Context, r migration.Ref) error {
	return h.note("CleanUpSource", r)
}

func (h *fakeHost) CheckDestination(_ context.Context, r migration.Ref, c migration.CheckRequest) (migration.CheckAnswer, error) {
	return migration.CheckAnswer{Disks: []migration.DiskView{{Target: "vda", Shared: c.Source.Name == "host-b"}}}, h.note("CheckDestination", r)
}

func (h *fakeHost) Claim(_ context.Context, r migration.Ref, c migration.ClaimRequest) (migration.ClaimAnswer, error) {
	return migration.ClaimAnswer{Claim: "c-1", Ticket: "secret", Lease: c.Lease}, h.note("Claim", r)
}

func (h *fakeHost) RenewClaim(ctx context.Context, r migration.Ref) error {
	if h.enter != nil {
		h.enter <- struct{}{}
	}
	if h.gate != nil {
		<-h.gate
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return h.note("RenewClaim", r)
}
func (h *fakeHost) AbortClaim(_ context.Context, r migration.Ref) error {
	return h.note("AbortClaim", r)
}

func (h *fakeHost) PreLiveMigration(_ context.Context, r migration.Ref, p migration.PreLiveRequest) (migration.Prepared, error) {
	return migration.Prepared{DestinationXML: "<domain type='kvm'>" + p.Source + "</domain>", PersistentXML: p.Guest.XML}, h.note("PreLiveMigration", r)
}
func (h *fakeHost) RollbackPreLiveMigration(_ context.Context, r migration.Ref) error {
	return h.note("RollbackPreLiveMigration", r)
}

func (h *fakeHost) AcceptToken(_ context.Context, r migration.Ref, c migration.Commit) error {
	h.mu.Lock()
	h.seen = c
	h.mu.Unlock()
	return h.note("AcceptToken", r)
}

func (h *fakeHost) DestinationStatus(_ context.Context, r migration.Ref) (migration.DestinationStatus, error) {
	return migration.DestinationStatus{Claim: "arriving"}, h.note("DestinationStatus", r)
}
func (h *fakeHost) FinishDestination(_ context.Context, r migration.Ref) error {
	return h.note("FinishDestination", r)
}

// fakeAgent is everything else that an API serves.
type fakeAgent struct {
	name    string
	started []api.Migrate
	sets    []api.SetMigration
	from    []string
	records chan migration.Migration
}

func (f *fakeAgent) Status(context.Context) (api.Status, error) {
	return api.Status{Name: f.name, Health: api.HealthOK, Ready: true}, nil
}
func (f *fakeAgent) Host(context.Context) (api.HostInfo, error) {
	return api.HostInfo{Description: migration.Description{Name: f.name}}, nil
}
func (f *fakeAgent) Hosts(context.Context) ([]api.HostEntry, error) {
	return []api.HostEntry{{Name: f.name}}, nil
}
func (f *fakeAgent) Known(_ context.Context, from string) (api.Knowledge, error) {
	return api.Knowledge{Host: from}, nil
}

func (f *fakeAgent) FilesUsed(context.Context, api.FileQuestion) ([]fileusers.Reply, error) {
	return nil, nil
}

func (f *fakeAgent) Aggregates(context.Context) (api.HostAggregates, error) {
	return api.HostAggregates{Name: f.name, Aggregates: []string{}}, nil
}

func (f *fakeAgent) ChangeAggregates(_ context.Context, r api.ChangeAggregates) (api.HostAggregates, error) {
	return api.HostAggregates{Name: f.name, Aggregates: r.Of(nil)}, nil
}

func (f *fakeAgent) SetHost(ctx context.Context, r api.SetHost) (api.HostState, error) {
	return api.HostState{Name: f.name, Disabled: &api.Disabled{Reason: r.Reason, By: api.CallerName(ctx)}}, nil
}

type fakeInstances struct {
	created []api.CreateInstance
	starts  []api.StartInstance
	panics  bool // in Stop
}

func (f *fakeInstances) Create(_ context.Context, r api.CreateInstance) (api.Instance, error) {
	f.created = append(f.created, r)
	return api.Instance{Instance: claims.Instance{UUID: r.UUID, Name: r.Name, Flavor: r.Flavor}, Managed: true}, nil
}
func (f *fakeInstances) Adopt(context.Context, api.AdoptInstances) (api.AdoptedList, error) {
	return api.AdoptedList{Instances: []host.Adopted{}}, nil
}
func (f *fakeInstances) List(_ context.Context, hidden bool) ([]api.Instance, error) {
	all := []api.Instance{{State: "unknown"}}
	if hidden {
		all = append(all, api.Instance{Instance: claims.Instance{Hidden: true}})
	}
	return all, fault.New(fault.Unavailable, "libvirt is away")
}
func (f *fakeInstances) Show(_ context.Context, ref string) (api.InstanceDetail, error) {
	if ref == "a b/c" {
		return api.InstanceDetail{Instance: api.Instance{Instance: claims.Instance{Name: ref}}}, nil
	}
	return api.InstanceDetail{}, fault.New(fault.NotFound, "no instance %s", ref)
}
func (f *fakeInstances) Start(_ context.Context, _ string, o api.StartInstance) (api.Instance, error) {
	f.starts = append(f.starts, o)
	return api.Instance{}, fault.Refuse(fault.DoesNotFit, "start instance web", fault.Reason{Code: "memory_short", Message: "memory: want 4096 MiB, 1024 MiB free", Want: "4096", Have: "1024", Change: "free 3072 MiB"},
		fault.Reason{Code: "vcpu_short", Message: "vcpus: want 4, 1 free"})
}
func (f *fakeInstances) Stop(context.Context, string, api.StopInstance) (api.Instance, error) {
	if f.panics {
		panic("a fault of this test's")
	}
	return api.Instance{}, nil
}
func (f *fakeInstances) Delete(context.Context, string, api.DeleteInstance) (api.Deleted, error) {
	return api.Deleted{}, nil
}

type fakePlans struct{ asked []api.PlanRequest }

func (f *fakePlans) Plan(_ context.Context, r api.PlanRequest) (migration.Plan, error) {
	f.asked = append(f.asked, r)
	return migration.Plan{}, nil
}

func (f *fakePlans) Room(context.Context, migration.RoomRequest) (migration.RoomAnswer, error) {
	return migration.RoomAnswer{}, nil
}

type fakeClaims struct{}

func (fakeClaims) List(context.Context) ([]api.Claim, error) {
	return []api.Claim{{ID: "c-1", Resources: topology.Resources{VCPUs: 2}}}, nil
}
func (fakeClaims) Explain(_ context.Context, ref string) (api.Explanation, error) {
	if ref != "web" {
		return api.Explanation{}, fault.New(fault.NotFound, "no claim")
	}
	return explained, nil
}

func (fakeClaims) Show(context.Context, string) (api.Claim, error) {
	return api.Claim{}, fault.New(fault.NotFound, "no claim")
}

type fakeMigrations struct{ *fakeAgent }

func (f fakeMigrations) Start(ctx context.Context, r api.Migrate) (migration.Migration, error) {
	f.started = append(f.started, r)
	from, _ := api.FromHost(ctx)
	f.fakeAgent.started, f.fakeAgent.from = f.started, append(f.from, from)
	return migration.Migration{UUID: r.Migration, SourceCompute: f.name, Status: migration.StatusAccepted}, nil
}
func (f fakeMigrations) List(context.Context) ([]migration.Migration, error) { return nil, nil }
func (f fakeMigrations) Get(_ context.Context, uuid string) (migration.Migration, error) {
	return migration.Migration{UUID: uuid, SourceCompute: f.name}, nil
}
func (f fakeMigrations) Abort(_ context.Context, uuid string) (migration.Migration, error) {
	return migration.Migration{UUID: uuid}, nil
}
func (f fakeMigrations) Set(ctx context.Context, ref string, in api.SetMigration) (migration.Migration, error) {
	from, _ := api.FromHost(ctx)
	f.fakeAgent.from, f.fakeAgent.sets = append(f.from, from), append(f.sets, in)
	return migration.Migration{UUID: ref, SourceCompute: f.name}, nil
}
func (f fakeMigrations) ForceComplete(_ context.Context, ref string) (migration.Migration, error) {
	return migration.Migration{}, fault.New(fault.Forbidden, "force migration %s: nothing is in flight", ref)
}
func (f fakeMigrations) Watch(ctx context.Context, uuid string) (<-chan migration.Migration, error) {
	if f.records == nil {
		return nil, fault.New(fault.NotFound, "no migration %s", uuid)
	}
	return f.records, nil
}

// Confirm takes a migration called "apart…" for one between hosts that share nothing,
// host-s and host-d.
func (f fakeMigrations) Confirm(ctx context.Context, ref string) (migration.Migration, error) {
	from, _ := api.FromHost(ctx)
	if strings.HasPrefix(ref, "apart") {
		if err := api.Demand(ctx, pki.RightShareNothing, api.Deed{Doing: "confirm migration " + ref, Migration: ref, Parties: []string{"host-s", "host-d"}}); err != nil {
			return migration.Migration{}, err
		}
	}
	f.fakeAgent.from = append(f.from, from)
	return migration.Migration{UUID: ref, SourceCompute: f.name, Status: migration.StatusConfirming}, nil
}
func (f fakeMigrations) Revert(_ context.Context, ref string) (migration.Migration, error) {
	return migration.Migration{}, fault.New(fault.Busy, "migration %s is being confirmed", ref)
}
func (f fakeMigrations) Stories() []migration.Story { return conductor.Stories() }

// fakeParties is what a host has recorded of migrations.
type fakeParties map[string][2]string

func (f fakeParties) Parties(migration, instance string) (api.Between, bool) {
	p, ok := f[migration]
	if migration == "" {
		p, ok = f["instance "+instance]
	}
	b := api.Between{Source: p[0], Destination: p[1], Conductor: p[0]}
	if third, apart := f["conducted"]; apart {
		b.Conductor = third[0]
	}
	if whose, said := f["guest of "+migration]; said {
		b.Instance = whose[0]
	}
	return b, ok
}

// ca is an authority that issues into folders of the test.
type ca struct {
	t *testing.T
	a *pki.Authority
}

func newCA(t *testing.T, name string) ca {
	t.Helper()
	a, err := pki.Init(t.TempDir(), name, time.Now(), false)
	if err != nil {
		t.Fatal(err)
	}
	return ca{t, a}
}

func (c ca) host(name string, rights ...pki.Right) *pki.Identity {
	c.t.Helper()
	dir := c.t.TempDir()
	if _, err := c.a.IssueHost(dir, name, nil, time.Now(), rights...); err != nil {
		c.t.Fatal(err)
	}
	return c.load(dir, pki.HostCertFile, pki.HostKeyFile)
}

func (c ca) operator(name string, rights ...pki.Right) *pki.Identity {
	c.t.Helper()
	dir := c.t.TempDir()
	if _, err := c.a.IssueOperator(dir, name, time.Now(), rights...); err != nil {
		c.t.Fatal(err)
	}
	return c.load(dir, pki.OperatorCertFile, pki.OperatorKeyFile)
}

func (c ca) reader(name string) *pki.Identity {
	c.t.Helper()
	dir := c.t.TempDir()
	if _, err := c.a.IssueReader(dir, name, time.Now()); err != nil {
		c.t.Fatal(err)
	}
	return c.load(dir, pki.OperatorCertFile, pki.OperatorKeyFile)
}

func (c ca) load(dir, cert, key string) *pki.Identity {
	c.t.Helper()
	id, err := pki.Load(pki.Paths{CA: filepath.Join(dir, pki.CACertFile), Cert: filepath.Join(dir, cert), Key: filepath.Join(dir, key)}, time.Now())
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}

// lockedBuffer is what a server has logged.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// world is a served agent.
type world struct {
	verbs     *fakeHost
	agent     *fakeAgent
	instances *fakeInstances
	parties   fakeParties
	rights    *fakeRights
	log       *lockedBuffer
	trail     *trail
	foreign   *fakeForeign
	audits    fakeAudits
	fleet     *fakeFleet
	plans     *fakePlans
	socket    string
	address   string
	peer      func(string) (*api.Client, error)

	bodyTimeout time.Duration
}

// serve starts an agent called name with a unix socket and, with an identity, a
// TCP port.
func serve(t *testing.T, name string, id *pki.Identity) *world {
	t.Helper()
	return serveWith(t, name, id, 10*time.Second)
}

func serveWith(t *testing.T, name string, id *pki.Identity, bodyTimeout time.Duration) *world {
	t.Helper()
	w := &world{
		verbs: &fakeHost{name: name}, agent: &fakeAgent{name: name}, instances: &fakeInstances{}, parties: fakeParties{}, foreign: &fakeForeign{}, rights: &fakeRights{}, log: &lockedBuffer{}, trail: &trail{}, fleet: &fakeFleet{}, plans: &fakePlans{},
		socket: filepath.Join(t.TempDir(), "s"), bodyTimeout: bodyTimeout,
	}
	s := api.NewServer(api.Options{
		Name: name, Identity: id, Runtime: &runtime.System{}, BodyTimeout: w.bodyTimeout, Logger: slog.New(slog.NewTextHandler(w.log, nil)),
		AuditLog: w.trail.write,
		Services: api.Services{
			Agent: w.agent, Instances: w.instances, Claims: fakeClaims{}, Migrations: fakeMigrations{w.agent}, Verbs: w.verbs, Parties: w.parties, Rights: w.rights,
			Guard: w.foreign, Foreign: w.foreign, Audits: &w.audits, Plans: w.plans, Deaths: fakeDeaths{w.fleet}, Fleet: fakeRecords{w.fleet}, Drains: fakeDrains{w.fleet}, Doctor: w.fleet, Sides: w.verbs, Settle: w.verbs,
			Peer: func(n string) (*api.Client, error) {
				if w.peer == nil {
					return nil, fault.New(fault.NotFound, "no host %s", n)
				}
				return w.peer(n)
			},
		},
	})
	listeners := []net.Listener{}
	l, err := net.Listen("unix", w.socket)
	if err != nil {
		t.Fatal(err)
	}
	listeners = append(listeners, l)
	if id != nil {
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		w.address = tcp.Addr().String()
		listeners = append(listeners, tcp)
	}
	var wg sync.WaitGroup
	for _, l := range listeners {
		wg.Go(func() {
			if err := s.Serve(l); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
	return w
}

func client(t *testing.T, o api.ClientOptions) *api.Client {
	t.Helper()
	c, err := api.NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// answering serves what an agent of an earlier release answers, on a socket, until the test ends.
func answering(t *testing.T, answer http.HandlerFunc) *api.Client {
	t.Helper()
	s := httptest.NewUnstartedServer(answer)
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s.Listener.Close()
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	return client(t, api.ClientOptions{Socket: socket})
}
