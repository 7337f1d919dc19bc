package agent

import (
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/agent/api"
)

// TestPage_FollowsAMoveAndTheAuditLogsOfBothHostsTellIt: two agents, a guest that goes from one
// to the other, what is to be seen before, meanwhile and after, and who was asked for what.
func TestPage_FollowsAMoveAndTheAuditLogsOfBothHostsTellIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(host, name string) string { return filepath.Join(dir, host+"-"+name) }
	p := newHosts(t, time.Hour, []string{"host-a", "host-b"}, func(o *Options) {
		name := o.Config.Agent.Name
		o.Config.Web.Listen, o.Config.Agent.AuditLog = "unix:"+file(name, "page"), file(name, "audit")
	})
	// shows waits for a page that has all of it.
	shows := func(host, when string, want ...string) {
		t.Helper()
		var text string
		await(t, "the page of "+host+" "+when, func() bool {
			var status int
			status, text = pageOf(t, "unix", file(host, "page"))
			return status == http.StatusOK && !slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(text, w) })
		})
	}
	web := p.guest("host-a", "web")
	shows("host-a", "before", web, "ACTIVE", "Nothing moves", "Nothing was moved")
	id := p.move(web, "host-a", "host-b")
	shows("host-a", "meanwhile", "berth migration show "+id, `<li class="now" title="stream: now">`, "MIGRATING", "<b>host-b</b>", "user:")
	shows("host-b", "meanwhile", "on its way here")
	p.finish("host-a", id)
	shows("host-a", "after", "Nothing moves", `<span class="state good">completed</span>`, "There are no guests here")
	shows("host-b", "after", web, "ACTIVE", "lives here")

	asked := auditLines(t, file("host-a", "audit"))
	if i := slices.IndexFunc(asked, func(e api.AuditEntry) bool { return e.Do == "migrate" }); i < 0 || asked[i].Result != api.AuditDone || !slices.Equal(asked[i].On, []string{"instance=" + web, "dest_compute=host-b"}) {
		t.Errorf("host-a was asked for %+v", asked)
	}
	var steps []string
	for _, e := range auditLines(t, file("host-b", "audit")) {
		if e.By != "host:host-a" || e.Cert == "" || e.From == "" || !slices.Contains(e.On, "migration="+id) {
			t.Errorf("host-b has %+v", e)
		}
		if e.Result == api.AuditDone {
			steps = append(steps, e.Do)
		}
	}
	want := []string{"verb-claim", "verb-pre-live-migration", "verb-accept-token", "verb-finish-destination"}
	if got := slices.DeleteFunc(steps, func(s string) bool { return !slices.Contains(want, s) }); !slices.Equal(slices.Compact(got), want) {
		t.Errorf("host-b was asked for %q, want %q", got, want)
	}
}
