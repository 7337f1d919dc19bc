package placementclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"berth/internal/fault"
	"berth/internal/runtime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script answers requests one after the other, the versions document apart.
type script struct {
	mu    sync.Mutex
	steps []func(w http.ResponseWriter, r *http.Request)
	seen  []string // method, path and body of each request
	max   string   // highest microversion; 1.39 when empty
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.URL.Path == "/" {
		top := s.max
		if top == "" {
			top = "1.39"
		}
		fmt.Fprintf(w, `{"versions":[{"id":"v1.0","min_version":"1.0","max_version":"%s"}]}`, top)
		return
	}
	b, _ := io.ReadAll(r.Body)
	s.seen = append(s.seen, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+string(b)))
	if len(s.steps) == 0 {
		http.Error(w, "the script is at its end", http.StatusTeapot)
		return
	}
	step := s.steps[0]
	s.steps = s.steps[1:]
	step(w, r)
}

// requests is what was seen so far.
func (s *script) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

func answer(status int, body string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func refusalBody(status int, code, detail string) func(http.ResponseWriter, *http.Request) {
	b, _ := json.Marshal(map[string]any{"errors": []any{map[string]any{
		"status": status, "title": http.StatusText(status), "detail": detail, "code": code, "request_id": "req-1"}}})
	return answer(status, string(b))
}

// hangUp cuts the connection after the request was read: the reply is lost.
func hangUp(w http.ResponseWriter, _ *http.Request) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		_ = c.Close()
	}
}

// clock sleeps without waiting and remembers how long.
type clock struct {
	runtime.System
	mu    sync.Mutex
	slept []time.Duration
}

func (c *clock) Sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slept = append(c.slept, d)
	return context.Cause(ctx)
}

func dial(t *testing.T, h http.Handler, change func(*Config)) (*Client, *clock) {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	c := &clock{}
	cfg := Config{URL: server.URL, Token: "admin", Runtime: c, Jitter: func() float64 { return 1 }}
	if change != nil {
		change(&cfg)
	}
	client, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client, c
}

const (
	raceDetail     = "There was a conflict when trying to complete your request.\n\n Inventory and/or allocations changed while attempting to allocate: Another thread concurrently updated the data. Please retry your update  "
	consumerDetail = "There was a conflict when trying to complete your request.\n\n consumer generation conflict - expected 1 but got None  "
	orphanDetail   = "There was a conflict when trying to complete your request.\n\n consumer generation conflict - expected 0 but got None  "
	concurrent     = "placement.concurrent_update"
)

var claimed = Allocations{
	Allocations: map[string]Resources{"rp": {ClassVCPU: 2}}, ProjectID: "p", UserID: "u", ConsumerType: ConsumerInstance,
}

const claimedRead = `{"allocations":{"rp":{"generation":5,"resources":{"VCPU":2}}},"project_id":"p","user_id":"u","consumer_generation":1,"consumer_type":"INSTANCE"}`

func TestConflict_EveryMeaningIsToldApart(t *testing.T) {
	for _, c := range []struct {
		code, detail string
		want         Conflict
		kind         fault.Kind
	}{
		{concurrent, "resource provider generation conflict", ConflictProviderGeneration, fault.GenerationConflict},
		{concurrent, "resource provider generation conflict for provider x: actual: 2, given: 1", ConflictProviderGeneration, fault.GenerationConflict},
		{concurrent, "Resource provider's generation already changed. Please update the generation and try again.", ConflictProviderGeneration, fault.GenerationConflict},
		{concurrent, "update conflict: Another thread concurrently updated the resource provider data. Please retry your update", ConflictProviderGeneration, fault.GenerationConflict},
		{concurrent, consumerDetail, ConflictConsumerGeneration, fault.GenerationConflict},
		{concurrent, raceDetail, ConflictServerRace, fault.Busy},
		{concurrent, "Inventory and/or allocations changed while attempting to allocate: Another thread concurrently updated the resource provider data. Please retry your update", ConflictServerRace, fault.Busy},
		{concurrent, "Unable to delete inventory of class VCPU: Inventory for 'VCPU' on resource provider 'x' in use.", ConflictInventoryInUse, fault.Busy},
		{concurrent, "Update conflict: (pymysql.err.IntegrityError) (1062, \"Duplicate entry '58-14'\")", ConflictExists, fault.Exists},
		{concurrent, "Update conflict: an inventory of class PCPU already exists on resource provider x.", ConflictExists, fault.Exists},
		{"placement.inventory.inuse", "update conflict: Inventory for 'VCPU' on resource provider 'x' in use.", ConflictInventoryInUse, fault.Busy},
		{"placement.undefined_code", "Unable to allocate inventory: Unable to create allocation for 'VCPU' on resource provider 'x'. The requested amount would exceed the capacity.", ConflictCapacity, fault.DoesNotFit},
		{"placement.undefined_code", "Unable to allocate inventory: Unable to create allocation for 'VCPU' on resource provider 'x'. The requested amount would violate inventory constraints.", ConflictUnits, fault.DoesNotFit},
		{"placement.undefined_code", "Unable to allocate inventory: Inventory for 'VGPU' on resource provider 'x' invalid.", ConflictNoInventory, fault.DoesNotFit},
		{"placement.undefined_code", "The trait CUSTOM_LAB is in use by a resource provider.", ConflictTraitInUse, fault.Busy},
		{"placement.undefined_code", "Conflicting resource class already exists: CUSTOM_LAB", ConflictExists, fault.Exists},
		{"placement.duplicate_name", "Conflicting resource provider name: x already exists.", ConflictExists, fault.Exists},
		{"placement.resource_provider.inuse", "Unable to delete resource provider x: Resource provider has allocations.", ConflictProviderInUse, fault.Busy},
		{"placement.resource_provider.cannot_delete_parent", "Unable to delete parent resource provider x: It has child resource providers.", ConflictHasChildren, fault.Busy},
		{"placement.undefined_code", "something new", ConflictOther, fault.Busy},
	} {
		body, _ := json.Marshal(map[string]any{"errors": []any{map[string]any{"detail": c.detail, "code": c.code}}})
		e := parseError(http.StatusConflict, body)
		if e.Conflict != c.want || e.Kind() != c.kind {
			t.Errorf("%s %q: got %s (%s), want %s (%s)", c.code, c.detail, e.Conflict, e.Kind(), c.want, c.kind)
		}
	}
}

func TestParseError_OtherShapes(t *testing.T) {
	for _, c := range []struct{ body, want string }{
		{`{"message": "no token<br />", "code": "401 Unauthorized", "title": "Unauthorized"}`, "no token<br />"},
		{`{"error":{"code":401,"title":"Unauthorized","message":"The request you have made requires authentication."}}`, "The request you have made requires authentication."},
		{`<html>bad gateway</html>`, "<html>bad gateway</html>"},
		{``, ""},
	} {
		if got := parseError(http.StatusUnauthorized, []byte(c.body)); got.Detail != c.want || got.Kind() != fault.Forbidden {
			t.Errorf("%s: got %q (%s), want %q", c.body, got.Detail, got.Kind(), c.want)
		}
	}
}

func TestPutAllocations_RepeatsTheSameBodyAfterARaceInsideTheServer(t *testing.T) {
	s := &script{steps: []func(http.ResponseWriter, *http.Request){
		refusalBody(409, concurrent, raceDetail), refusalBody(409, concurrent, raceDetail), answer(204, ""),
	}}
	c, clock := dial(t, s, nil)
	if err := c.PutAllocations(t.Context(), "i", claimed); err != nil {
		t.Fatal(err)
	}
	if len(s.requests()) != 3 || s.requests()[0] != s.requests()[1] || s.requests()[1] != s.requests()[2] {
		t.Errorf("requests: %q", s.requests())
	}
	if d := cmp.Diff([]time.Duration{200 * time.Millisecond, 400 * time.Millisecond}, clock.slept); d != "" {
		t.Errorf("pauses (-want +got)\n%s", d)
	}
	if n := c.Counters(); n.Races != 2 || n.Retries != 2 || n.Calls["PUT /allocations/{consumer} 204"] != 1 {
		t.Errorf("counters: %+v", n)
	}
}

func TestPutAllocations_GivesUpOnRacesAsBusy(t *testing.T) {
	s := &script{}
	for range 10 {
		s.steps = append(s.steps, refusalBody(409, concurrent, raceDetail))
	}
	c, _ := dial(t, s, func(cfg *Config) { cfg.Retries = 3 })
	err := c.PutAllocations(t.Context(), "i", claimed)
	if fault.KindOf(err) != fault.Busy || ConflictOf(err) != ConflictServerRace || len(s.requests()) != 4 {
		t.Errorf("got %v after %d requests", err, len(s.requests()))
	}
}

func TestPutAllocations_AConsumerConflictIsNotRepeated(t *testing.T) {
	s := &script{steps: []func(http.ResponseWriter, *http.Request){refusalBody(409, concurrent, consumerDetail)}}
	c, _ := dial(t, s, nil)
	err := c.PutAllocations(t.Context(), "i", claimed)
	if !errors.Is(err, fault.GenerationConflict) || ConflictOf(err) != ConflictConsumerGeneration || len(s.requests()) != 1 {
		t.Errorf("got %v after %q", err, s.requests())
	}
	n, words := c.Counters(), "PUT /allocations/{consumer} 409"
	if d := cmp.Diff(map[Conflict]int64{ConflictConsumerGeneration: 1}, n.Conflicts); d != "" {
		t.Errorf("conflicts (-want +got)\n%s", d)
	}
	if n.Calls[words] != 1 || n.Took[words] <= 0 {
		t.Errorf("counters: %+v, want one call, and how long it took", n)
	}
}

func TestPutAllocations_LostReplyOfALandedWriteIsSuccess(t *testing.T) {
	s := &script{steps: []func(http.ResponseWriter, *http.Request){
		hangUp, refusalBody(409, concurrent, consumerDetail), answer(200, claimedRead),
	}}
	c, _ := dial(t, s, nil)
	if err := c.PutAllocations(t.Context(), "i", claimed); err != nil {
		t.Errorf("got %v after %q", err, s.requests())
	}
	if n := c.Counters().InDoubt; n != 0 {
		t.Errorf("%d in doubt", n)
	}
}

func TestPutAllocations_LostReplyAndAnotherWriterIsAConflict(t *testing.T) {
	other := strings.ReplaceAll(claimedRead, `"VCPU":2`, `"VCPU":3`)
	s := &script{steps: []func(http.ResponseWriter, *http.Request){
		hangUp, refusalBody(409, concurrent, consumerDetail), answer(200, other),
	}}
	c, _ := dial(t, s, nil)
	if err := c.PutAllocations(t.Context(), "i", claimed); fault.KindOf(err) != fault.GenerationConflict {
		t.Errorf("got %v", err)
	}
}

func TestPostAllocations_NoAnswerToTheEndIsInDoubt(t *testing.T) {
	s := &script{steps: []func(http.ResponseWriter, *http.Request){hangUp, hangUp, hangUp}}
	c, _ := dial(t, s, func(cfg *Config) { cfg.Retries = 2 })
	err := c.PostAllocations(t.Context(), map[string]Allocations{"i": claimed})
	if err == nil || !strings.HasPrefix(err.Error(), "post allocations of consumers i: ") {
		t.Errorf("it does not say what was being done: %v", err)
	}
	if fault.KindOf(err) != fault.InDoubt || c.Counters().InDoubt != 1 || len(s.requests()) != 3 {
		t.Errorf("got %v (%s), %+v", err, fault.KindOf(err), c.Counters())
	}
}

func TestPostAllocations_ARefusalAfterALostCopyIsInDoubt(t *testing.T) {
	// The lost copy may still arrive when there is room again.
	full := "Unable to allocate inventory: Unable to create allocation for 'VCPU' on resource provider 'x'. The requested amount would exceed the capacity."
	s := &script{steps: []func(http.ResponseWriter, *http.Request){answer(502, "bad gateway"), refusalBody(409, "placement.undefined_code", full)}}
	c, _ := dial(t, s, nil)
	err := c.PostAllocations(t.Context(), map[string]Allocations{"i": claimed})
	if fault.KindOf(err) != fault.InDoubt || ConflictOf(err) != ConflictCapacity {
		t.Errorf("got %v (%s)", err, fault.KindOf(err))
	}
}

func TestAllocations_ALostReplyToAReadIsUnavailable(t *testing.T) {
	s := &script{}
	for range 10 { // net/http repeats a lost GET by itself
		s.steps = append(s.steps, hangUp)
	}
	c, _ := dial(t, s, func(cfg *Config) { cfg.Retries = 1 })
	if _, err := c.Allocations(t.Context(), "i"); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("got %v (%s)", err, fault.KindOf(err))
	}
}

func TestPutAllocations_NothingListensIsUnavailable(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	url := server.URL
	server.Close()
	c, err := New(Config{URL: url, Runtime: &clock{}, Retries: 2})
	if err != nil {
		t.Fatal(err)
	}
	c.version.Store(39) // as after an earlier call, so that the write itself meets the closed port
	if err := c.PutAllocations(t.Context(), "i", claimed); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("got %v (%s), want unavailable: no copy can have left", err, fault.KindOf(err))
	}
}

func TestDeleteAllocations_GoneAfterALostReplyIsSuccess(t *testing.T) {
	s := &script{steps: []func(http.ResponseWriter, *http.Request){hangUp, refusalBody(404, "placement.undefined_code", "No allocations for consumer 'i'")}}
	c, _ := dial(t, s, nil)
	if err := c.DeleteAllocations(t.Context(), "i"); err != nil {
		t.Error(err)
	}
}

func TestDeleteAllocations_GoneAtOnceIsNotFound(t *testing.T) {
	s := &script{steps: []func(http.ResponseWriter, *http.Request){refusalBody(404, "placement.undefined_code", "No allocations for consumer 'i'")}}
	c, _ := dial(t, s, nil)
	if err := c.DeleteAllocations(t.Context(), "i"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("got %v", err)
	}
}

func TestPostAllocations_TakesOverAnOrphanConsumer(t *testing.T) {
	s := &script{steps: []func(http.ResponseWriter, *http.Request){
		refusalBody(409, concurrent, orphanDetail), answer(200, `{"allocations":{}}`), answer(204, ""),
	}}
	c, _ := dial(t, s, nil)
	kept := claimed
	kept.ConsumerGeneration = Generation(4)
	err := c.PostAllocations(t.Context(), map[string]Allocations{"migration": claimed, "instance": kept})
	if err != nil {
		t.Fatal(err)
	}
	var last map[string]struct {
		G *int `json:"consumer_generation"`
	}
	_, body, _ := strings.Cut(s.requests()[2], "/allocations ")
	if err := json.Unmarshal([]byte(body), &last); err != nil {
		t.Fatal(err)
	}
	if last["migration"].G == nil || *last["migration"].G != 0 || *last["instance"].G != 4 || c.Counters().Orphans != 1 {
		t.Errorf("last request %s, counters %+v", s.requests()[2], c.Counters())
	}
}

func TestClient_ObeysRetryAfter(t *testing.T) {
	s := &script{steps: []func(http.ResponseWriter, *http.Request){
		func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Retry-After", "7"); w.WriteHeader(429) },
		answer(204, ""),
	}}
	c, clock := dial(t, s, nil)
	if err := c.DeleteProvider(t.Context(), "rp"); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]time.Duration{7 * time.Second}, clock.slept); d != "" {
		t.Errorf("pauses (-want +got)\n%s", d)
	}
}

func TestClient_ItsOwnDeadlineEndsACall(t *testing.T) {
	release := make(chan struct{})
	s := &script{steps: []func(http.ResponseWriter, *http.Request){func(http.ResponseWriter, *http.Request) { <-release }}}
	c, _ := dial(t, s, func(cfg *Config) { cfg.Timeout = 2 * time.Second })
	t.Cleanup(func() { close(release) })
	err := c.PutAllocations(t.Context(), "i", claimed)
	if fault.KindOf(err) != fault.InDoubt || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v (%s)", err, fault.KindOf(err))
	}
}

type tokens struct{ given []string }

func (s *tokens) Token(_ context.Context, refused string) (string, error) {
	s.given = append(s.given, refused)
	return fmt.Sprintf("token-%d", len(s.given)), nil
}

func TestClient_TakesANewTokenOnceAfter401(t *testing.T) {
	var got []string
	see := func(status int) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) {
			got = append(got, r.Header.Get("X-Auth-Token"))
			w.WriteHeader(status)
		}
	}
	s := &script{steps: []func(http.ResponseWriter, *http.Request){see(401), see(204), see(401), see(401)}}
	src := &tokens{}
	c, _ := dial(t, s, func(cfg *Config) { cfg.TokenSource = src })
	if err := c.DeleteProvider(t.Context(), "rp"); err != nil {
		t.Fatal(err)
	}
	if err := c.DeleteProvider(t.Context(), "rp"); fault.KindOf(err) != fault.Forbidden {
		t.Errorf("after a second 401: %v", err)
	}
	// The first token went to the versions document.
	if d := cmp.Diff([]string{"token-2", "token-3", "token-4", "token-5"}, got); d != "" {
		t.Errorf("tokens (-want +got)\n%s", d)
	}
	if d := cmp.Diff([]string{"", "", "token-2", "", "token-4"}, src.given); d != "" {
		t.Errorf("refused tokens (-want +got)\n%s", d)
	}
}

// catalogue is one that knows a single endpoint.
type catalogue string

func (c catalogue) Endpoint(context.Context) (string, error) {
	if c == "" {
		return "", fault.New(fault.Unavailable, "no endpoint")
	}
	return string(c), nil
}

func TestClient_AsksTheCatalogueWhereNoURLIsGiven(t *testing.T) {
	s := &script{steps: []func(http.ResponseWriter, *http.Request){answer(204, "")}}
	c, _ := dial(t, http.StripPrefix("/placement", s), func(cfg *Config) {
		cfg.Catalogue, cfg.URL = catalogue(cfg.URL+"/placement/"), ""
	})
	if err := c.DeleteProvider(t.Context(), "rp"); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"DELETE /resource_providers/rp"}, s.requests()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	for _, none := range []catalogue{"", "placement:8778", "ftp://x", "unix:/x"} {
		c, err := New(Config{Catalogue: none})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.DeleteProvider(t.Context(), "rp"); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("catalogue %q: %v", string(none), err)
		}
	}
}

func TestClient_NegotiatesAndLeavesOutWhatIsTooNew(t *testing.T) {
	for _, c := range []struct{ max, header, body string }{
		{"1.39", "placement 1.39", `{"allocations":{"rp":{"resources":{"VCPU":2}}},"project_id":"p","user_id":"u","consumer_generation":null,"consumer_type":"INSTANCE","mappings":{"":["rp"]}}`},
		{"1.45", "placement 1.39", `{"allocations":{"rp":{"resources":{"VCPU":2}}},"project_id":"p","user_id":"u","consumer_generation":null,"consumer_type":"INSTANCE","mappings":{"":["rp"]}}`},
		{"1.36", "placement 1.36", `{"allocations":{"rp":{"resources":{"VCPU":2}}},"project_id":"p","user_id":"u","consumer_generation":null,"mappings":{"":["rp"]}}`},
		{"1.28", "placement 1.28", `{"allocations":{"rp":{"resources":{"VCPU":2}}},"project_id":"p","user_id":"u","consumer_generation":null}`},
	} {
		header := ""
		s := &script{max: c.max, steps: []func(http.ResponseWriter, *http.Request){func(w http.ResponseWriter, r *http.Request) {
			header = r.Header.Get("OpenStack-API-Version")
			w.WriteHeader(204)
		}}}
		client, _ := dial(t, s, nil)
		a := claimed.Clone()
		a.Mappings = map[string][]string{"": {"rp"}}
		if err := client.PutAllocations(t.Context(), "i", a); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{c.header, "PUT /allocations/i " + c.body}, []string{header, s.requests()[0]}); d != "" {
			t.Errorf("up to %s (-want +got)\n%s", c.max, d)
		}
	}
}

func TestClient_RefusesAServerThatIsTooOld(t *testing.T) {
	c, _ := dial(t, &script{max: "1.27"}, nil)
	if _, err := c.Version(t.Context()); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "1.27") {
		t.Errorf("got %v", err)
	}
}

func TestNew_RefusesWhatIsNoEndpoint(t *testing.T) {
	for _, cfg := range []Config{
		{URL: ""}, {URL: "placement:8778"}, {URL: "ftp://x"}, {URL: "http://"}, {URL: "unix:"}, {URL: "unix://host/path"},
		{URL: "placement:8778", Catalogue: catalogue("")}, {URL: "http://x", MinVersion: 27}, {URL: "http://x", MaxVersion: 40}, {URL: "http://x", MinVersion: 39, MaxVersion: 38},
	} {
		if _, err := New(cfg); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%+v: got %v", cfg, err)
		}
	}
}

func TestWrap_ARefusalForRoomListsItsReason(t *testing.T) {
	full := "Unable to allocate inventory: Unable to create allocation for 'VCPU' on resource provider 'x'. The requested amount would exceed the capacity."
	s := &script{steps: []func(http.ResponseWriter, *http.Request){refusalBody(409, "placement.undefined_code", full)}}
	c, _ := dial(t, s, nil)
	err := c.PutAllocations(t.Context(), "i", claimed)
	want := []fault.Reason{{Code: "placement_capacity", Message: full}}
	if d := cmp.Diff(want, fault.ReasonsOf(err)); d != "" || fault.KindOf(err) != fault.DoesNotFit {
		t.Errorf("%v (-want +got)\n%s", err, d)
	}
	if got := err.Error(); strings.Count(got, "exceed the capacity") != 1 {
		t.Errorf("said more than once: %s", got)
	}
}
