package placement

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// many is the body of a POST /allocations for consumers from first on, each with one
// VCPU of the provider.
func many(first, n int, provider, generation string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"%s":{"allocations":{"%s":{"resources":{"VCPU":1}}},"project_id":"p","user_id":"u","consumer_generation":%s,"consumer_type":"INSTANCE"}`, id(first+i), provider, generation)
	}
	b.WriteByte('}')
	return b.String()
}

// One request for thousands of consumers costs as much as they are, new ones and
// those that hold something already; it took their square.
func TestAllocations_ThousandsOfConsumers_CostAsMuchAsTheyAre(t *testing.T) {
	s := memory(t)
	do := func(path, method, body string, want int) string {
		t.Helper()
		w := answerWith(s, method, path, asAdmin, body)
		if w.Code != want {
			t.Fatalf("%s %s: %d %.300s", method, path, w.Code, w.Body)
		}
		return w.Body.String()
	}
	const n = 8000 // 65 s under the write lock before
	do("/resource_providers", "POST", `{"uuid":"`+id(1)+`","name":"a"}`, 200)
	do("/resource_providers/"+id(1)+"/inventories", "PUT", fmt.Sprintf(`{"resource_provider_generation":0,"inventories":{"VCPU":{"total":%d,"max_unit":1}}}`, n), 200)
	began := time.Now()
	do("/allocations", "POST", many(100, n, id(1), "null"), 204)
	do("/allocations", "POST", many(100, n, id(1), "1"), 204)
	if took := time.Since(began); took > time.Minute { // it takes a second; it took more than two minutes
		t.Errorf("took %s", took)
	}
	if got := do("/resource_providers/"+id(1)+"/usages", "GET", "", 200); !strings.Contains(got, fmt.Sprintf(`"VCPU":%d`, n)) {
		t.Errorf("usages %s", got)
	}
	if got := do("/allocations", "POST", many(100+n, 1, id(1), "null"), 409); !strings.Contains(got, "exceed the capacity") {
		t.Errorf("one more: %s", got)
	}
	if got := do("/allocations", "POST", many(100, maxConsumers+1, id(1), "null"), 400); !strings.Contains(got, "send several requests") {
		t.Errorf("too many: %.300s", got)
	}
}
