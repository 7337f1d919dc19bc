package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"berth/agent/api"
	"berth/claims"
	"berth/test/guest"
)

// The database of a guest's host is cut while its agent is dead: the guest runs on, the next agent says what it lost and puts the claim and the token
// back, by what libvirt, the other host and Placement know, and the guest moves on.
func TestDamage_ALostLedgerComesBackUnderARunningGuest(t *testing.T) {
	w := start(t)
	w.boot(w.b, guest.Options{Name: "d1", Dirty: 16, Rate: 24})
	before := ask[api.InstanceDetail](w, w.b, "instance", "show", "d1")
	if before.Token.State != claims.TokenHere || before.Token.Epoch != 1 || before.Claim == nil {
		t.Fatalf("before: token %+v, claim %v", before.Token, before.Claim)
	}

	was := w.domain(w.b, "d1")
	w.Agent(w.b.Name).Kill()
	ledger := w.b.Path("/var/lib/berth/berth.db")
	if err := os.Truncate(ledger, 5000); err != nil {
		t.Fatal(err)
	}
	if err := w.StartAgent(w.ctx, w.b.Name); err != nil {
		t.Fatal(err)
	}
	if err := w.WaitReady(w.ctx, w.b.Name); err != nil {
		t.Fatal(err)
	}

	after := ask[api.InstanceDetail](w, w.b, "instance", "show", "d1")
	w.require("token", after.Token, before.Token)
	if after.Claim == nil || after.Claim.State != claims.Bound || after.Claim.Resources != before.Claim.Resources {
		t.Fatalf("claim %+v, before %+v", after.Claim, before.Claim)
	}
	w.require("domain", w.domain(w.b, "d1"), was)
	w.alive("d1", w.b, w.b)
	r := w.run(w.b, "status", "--json")
	var status api.Status
	if err := json.Unmarshal([]byte(r.Stdout), &status); err != nil {
		t.Fatal(err)
	}
	var named string
	for _, c := range status.Conditions {
		for _, reason := range c.Reasons {
			if c.Name == "ledger" && reason.Code == "ledger_damaged" {
				named = reason.Have
			}
		}
	}
	kept, err := filepath.Glob(ledger + ".damaged-*")
	if r.Code != 7 || err != nil || len(kept) != 1 || filepath.Base(named) != filepath.Base(kept[0]) {
		t.Fatalf("status: exit code %d, names %q; kept %v, %v\n%s", r.Code, named, kept, err, r.Stdout)
	}
	if st, err := os.Stat(kept[0]); err != nil || st.Size() != 5000 {
		t.Errorf("the damaged file is %v, %v", st, err)
	}
	if err := os.Remove(kept[0]); err != nil { // somebody has looked at it
		t.Fatal(err)
	}
	w.healthy(w.b)
	w.berth(w.b, "migrate", "d1", w.a.Name)
	w.alive("d1", w.b, w.a)
	w.livesOn("d1", w.a, w.b)
}
