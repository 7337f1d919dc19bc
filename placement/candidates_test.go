package placement

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// devices is a server with one host of n devices, each a child with one unit.
func devices(t *testing.T, n int) *Server {
	t.Helper()
	s, err := New(Options{Listen: "127.0.0.1:0"})
	must(t, err)
	admin := map[string]string{"X-Auth-Token": "admin", "Content-Type": "application/json"}
	send := func(method, path, body string) {
		t.Helper()
		if w := answerWith(s, method, path, admin, body); w.Code >= 300 {
			t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
	}
	send("POST", "/resource_providers", fmt.Sprintf(`{"name":"host","uuid":%q}`, id(0)))
	for i := 1; i <= n; i++ {
		send("POST", "/resource_providers", fmt.Sprintf(`{"name":"device%d","uuid":%q,"parent_provider_uuid":%q}`, i, id(i), id(0)))
		send("PUT", "/resource_providers/"+id(i)+"/inventories", `{"resource_provider_generation":0,"inventories":{"PGPU":{"total":1}}}`)
	}
	return s
}

// A guest with many devices must not make a search through every way to give them
// out: what cannot be a candidate is left early, and the limit ends the search.
func TestCandidates_ManyGroupsAreNotAllTried(t *testing.T) {
	const n = 12 // 12 to the power of 12 choices, 12! candidates
	s := devices(t, n)
	var groups []string
	for i := range n {
		groups = append(groups, fmt.Sprintf("resources%d=PGPU:1", i+1))
	}
	for _, policy := range []string{"none", "isolate"} {
		began := time.Now()
		w := answerWith(s, "GET", "/allocation_candidates?"+strings.Join(groups, "&")+"&limit=5&group_policy="+policy, map[string]string{"X-Auth-Token": "admin"}, "")
		var got struct {
			Requests []json.RawMessage `json:"allocation_requests"`
		}
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 || len(got.Requests) != 5 {
			t.Errorf("group_policy %s: %d, %d candidates, %v", policy, w.Code, len(got.Requests), err)
		}
		if took := time.Since(began); took > time.Minute { // it takes a millisecond; all choices took years
			t.Errorf("group_policy %s: took %s", policy, took)
		}
	}
	// One group more than there are devices has no candidate.
	small := devices(t, 6)
	w := answerWith(small, "GET", "/allocation_candidates?"+strings.Join(groups[:7], "&")+"&group_policy=isolate", map[string]string{"X-Auth-Token": "admin"}, "")
	if w.Code != 200 || !strings.Contains(w.Body.String(), `"allocation_requests":[]`) {
		t.Errorf("seven of six: %d %s", w.Code, w.Body)
	}
}

// All of them are found where no limit is given, each once.
func TestCandidates_WaysToGiveOutDevices(t *testing.T) {
	s := devices(t, 4)
	for policy, want := range map[string]int{"none": 24, "isolate": 24} { // each has room for one: 4·3·2
		w := answerWith(s, "GET", "/allocation_candidates?resources1=PGPU:1&resources2=PGPU:1&resources3=PGPU:1&group_policy="+policy, map[string]string{"X-Auth-Token": "admin"}, "")
		var got struct {
			Requests []struct {
				Mappings map[string][]string
			} `json:"allocation_requests"`
		}
		must(t, json.Unmarshal(w.Body.Bytes(), &got))
		distinct := map[string]bool{}
		for _, r := range got.Requests {
			distinct[fmt.Sprint(r.Mappings)] = true
		}
		if len(got.Requests) != want || len(distinct) != want {
			t.Errorf("group_policy %s: %d candidates, %d distinct, want %d", policy, len(got.Requests), len(distinct), want)
		}
	}
}

// stopped is a client's context that stops who first looks whether it has ended.
type stopped struct {
	context.Context
	once        sync.Once
	at, proceed chan struct{}
}

func (c *stopped) Err() error {
	c.once.Do(func() { close(c.at); <-c.proceed })
	return nil
}

// A search among many providers and groups can take as long as its client waits.
func TestCandidates_ASearchHoldsUpNobodyAndSeesOneMoment(t *testing.T) {
	s := memory(t)
	do := func(method, path, body string, want int) {
		if w := answerWith(s, method, path, asAdmin, body); w.Code != want {
			t.Errorf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
	}
	do("POST", "/resource_providers", `{"uuid":"`+id(1)+`","name":"a"}`, 200)
	do("POST", "/resource_providers", `{"uuid":"`+id(2)+`","name":"b","parent_provider_uuid":"`+id(1)+`"}`, 200)
	do("PUT", "/resource_providers/"+id(2)+"/inventories", `{"resource_provider_generation":0,"inventories":{"VCPU":{"total":8}}}`, 200)
	do("PUT", "/allocations/"+id(5), claimBody(id(2), 2, "null"), 204)

	const asked = "/allocation_candidates?resources=VCPU:1"
	before := said(t, answerWith(s, "GET", asked, asAdmin, ""))
	ctx := &stopped{Context: t.Context(), at: make(chan struct{}), proceed: make(chan struct{})}
	q := httptest.NewRequest("GET", asked, nil).WithContext(ctx)
	q.Header.Set("X-Auth-Token", "admin")
	q.Header.Set("OpenStack-API-Version", "placement 1.39")
	found := make(chan *httptest.ResponseRecorder)
	go func() {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, q)
		found <- w
	}()
	<-ctx.at
	written := make(chan struct{})
	go func() {
		defer close(written)
		do("PUT", "/allocations/"+id(6), claimBody(id(2), 6, "null"), 204)
		do("POST", "/resource_providers", `{"uuid":"`+id(3)+`","name":"c","parent_provider_uuid":"`+id(1)+`"}`, 200)
		do("GET", "/resource_providers/"+id(2)+"/usages", "", 200)
	}()
	select {
	case <-written:
	case <-time.After(time.Minute):
		t.Error("a write waits for the search")
	}
	close(ctx.proceed)
	same(t, before, said(t, <-found))
	<-written
}

// What no search can find is proven, not tried: sixteen devices for seventeen groups,
// by isolation, by what each device holds, and where groups ask for unequal amounts.
func TestCandidates_MoreGroupsThanPlaces_EndAtOnce(t *testing.T) {
	const n = 16 // 16 to the power of 17 choices
	s := devices(t, n)
	big := memory(t)
	admin := map[string]string{"X-Auth-Token": "admin", "Content-Type": "application/json"}
	send := func(method, path, body string) {
		t.Helper()
		if w := answerWith(big, method, path, admin, body); w.Code >= 300 {
			t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
	}
	send("POST", "/resource_providers", fmt.Sprintf(`{"name":"host","uuid":%q}`, id(0)))
	for i := 1; i <= n; i++ {
		send("POST", "/resource_providers", fmt.Sprintf(`{"name":"cell%d","uuid":%q,"parent_provider_uuid":%q}`, i, id(i), id(0)))
		send("PUT", "/resource_providers/"+id(i)+"/inventories", `{"resource_provider_generation":0,"inventories":{"VCPU":{"total":5}}}`)
	}
	var pgpus, vcpus []string
	for i := range n + 1 {
		pgpus = append(pgpus, fmt.Sprintf("resources%d=PGPU:1", i+1))
		vcpus = append(vcpus, fmt.Sprintf("resources%d=VCPU:%d", i+1, 3+i%3))
	}
	for name, ask := range map[string]struct {
		s      *Server
		groups []string
		policy string
	}{
		"isolated":        {big, vcpus, "isolate"},
		"of one each":     {s, pgpus, "none"},
		"both":            {s, pgpus, "isolate"},
		"unequal amounts": {big, vcpus, "none"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // it takes milliseconds; all choices took years
		q := httptest.NewRequest("GET", "/allocation_candidates?"+strings.Join(ask.groups, "&")+"&group_policy="+ask.policy, nil).WithContext(ctx)
		q.Header.Set("X-Auth-Token", "admin")
		q.Header.Set("OpenStack-API-Version", "placement 1.39")
		w := httptest.NewRecorder()
		ask.s.ServeHTTP(w, q)
		if w.Code != 200 || !strings.Contains(w.Body.String(), `"allocation_requests":[]`) {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
		cancel()
	}
}

// A ratio may be so large that no integer holds the capacity: it is then not below 0.
func TestCandidates_CapacityPastInt64_IsNoLessThanOne(t *testing.T) {
	s := devices(t, 1)
	admin := map[string]string{"X-Auth-Token": "admin", "Content-Type": "application/json"}
	if w := answerWith(s, "PUT", "/resource_providers/"+id(1)+"/inventories", admin, `{"resource_provider_generation":1,"inventories":{"PGPU":{"total":2147483647,"allocation_ratio":3e38}}}`); w.Code != 200 {
		t.Fatal(w.Code, w.Body)
	}
	w := answerWith(s, "GET", "/allocation_candidates?resources1=PGPU:1&resources2=PGPU:2&group_policy=none", map[string]string{"X-Auth-Token": "admin"}, "")
	if w.Code != 200 || strings.Contains(w.Body.String(), `"allocation_requests":[]`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// A search that nothing can shorten ends with its client, and an answer without end
// is refused with what to do.
func TestCandidates_WithoutEnd_AreGivenUpOrRefused(t *testing.T) {
	s := devices(t, 64)
	var groups []string
	for i := range 3 { // 64·63·62 candidates
		groups = append(groups, fmt.Sprintf("resources%d=PGPU:1", i+1))
	}
	path := "/allocation_candidates?" + strings.Join(groups, "&") + "&group_policy=none"
	ask := func(ctx context.Context) *httptest.ResponseRecorder {
		q := httptest.NewRequest("GET", path, nil).WithContext(ctx)
		q.Header.Set("X-Auth-Token", "admin")
		q.Header.Set("OpenStack-API-Version", "placement 1.39")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, q)
		return w
	}
	if w := ask(t.Context()); w.Code != 400 || !strings.Contains(w.Body.String(), "ask with limit") {
		t.Errorf("without a limit: %d %.300s", w.Code, w.Body)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if w := ask(gone); w.Code != 503 {
		t.Errorf("of a client that has gone: %d %.300s", w.Code, w.Body)
	}
}

// endsAfter is a client's context that is over once it was looked at so often.
type endsAfter struct {
	context.Context
	left, seen int
}

func (c *endsAfter) Err() error {
	c.seen++
	if c.seen > c.left {
		return context.DeadlineExceeded
	}
	return nil
}

// A search that is cut off anywhere says so, and does not go on: nothing that was found by then
// is told as all there is.
func TestCandidates_CutOffAnywhere_IsGivenUp(t *testing.T) {
	var groups []string
	for i := range 17 {
		groups = append(groups, fmt.Sprintf("resources%d=PGPU:1", i+1))
	}
	for name, ask := range map[string]struct {
		devices int
		query   string
	}{
		"seventeen isolated groups over sixteen devices":    {16, strings.Join(groups, "&") + "&group_policy=isolate"},
		"seventeen isolated groups over seventeen devices":  {17, strings.Join(groups, "&") + "&group_policy=isolate&limit=3"},
		"seventeen groups over sixteen devices of one each": {16, strings.Join(groups, "&") + "&group_policy=none"},
		"one group of a tree":                               {16, "resources=PGPU:1"},
	} {
		s := devices(t, ask.devices)
		do := func(ctx context.Context) *httptest.ResponseRecorder {
			q := httptest.NewRequest("GET", "/allocation_candidates?"+ask.query, nil).WithContext(ctx)
			q.Header.Set("X-Auth-Token", "admin")
			q.Header.Set("OpenStack-API-Version", "placement 1.39")
			w := httptest.NewRecorder()
			s.ServeHTTP(w, q)
			return w
		}
		whole := &endsAfter{Context: t.Context(), left: 1 << 40}
		if w := do(whole); w.Code != 200 {
			t.Errorf("%s: %d %.300s", name, w.Code, w.Body)
		}
		for left := 1; left < whole.seen; left += 1 + whole.seen/200 {
			if w := do(&endsAfter{Context: t.Context(), left: left}); w.Code != 503 {
				t.Errorf("%s: cut off at look %d of %d: %d %.300s", name, left, whole.seen, w.Code, w.Body)
			}
		}
	}
}

// Each proof that a branch is hopeless is as long as the question is large, so it ends by itself.
func TestLacking_EndedContext_ProvesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := &provider{}
	groups := [][]option{{{}}, {{}}}
	takes, places := func(option) *provider { return p }, func(*provider) int { return 1 }
	if !lacking(ctx, groups, takes, places) {
		t.Error("two groups have one place")
	}
	cancel()
	if lacking(ctx, groups, takes, places) {
		t.Error("a proof of a request that is over")
	}
}

func TestCandidates_Groups_AreBounded(t *testing.T) {
	s := devices(t, 1)
	ask := func(groups int, more string) *httptest.ResponseRecorder {
		var q []string
		for i := range groups {
			q = append(q, fmt.Sprintf("resources%d=PGPU:1", i+1))
		}
		return answerWith(s, "GET", "/allocation_candidates?"+strings.Join(q, "&")+"&group_policy=none"+more, asAdmin, "")
	}
	if w := ask(maxGroups, ""); w.Code != 200 {
		t.Errorf("%d groups: %d %.300s", maxGroups, w.Code, w.Body)
	}
	if w := ask(maxGroups+1, ""); w.Code != 400 || !strings.Contains(w.Body.String(), "128 request groups") {
		t.Errorf("a group more: %d %.300s", w.Code, w.Body)
	}
	// One key thousands of times was read anew for each; it took minutes.
	began := time.Now()
	if w := ask(1, strings.Repeat("&required1=A", 20000)); w.Code != 400 || !strings.Contains(w.Body.String(), "1024 traits") {
		t.Errorf("20,000 traits: %d %.300s", w.Code, w.Body)
	}
	if took := time.Since(began); took > 20*time.Second { // it takes milliseconds
		t.Errorf("20,000 traits took %s", took)
	}
}
