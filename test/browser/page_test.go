package browser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/agent/api"
	"berth/agent/web"
	"berth/agent/web/webtest"
	"berth/internal/pki"
	"berth/internal/runtime"
	"berth/migration"
	"berth/test/lab"
)

// agent is a page that is shown, goes and comes again at one address.
type agent struct {
	t       *testing.T
	address string
	id      *pki.Identity // over TLS with it; in plain text where there is none

	mu     sync.Mutex
	moment web.Snapshot
	page   *web.Server
	ended  chan error
}

func newAgent(t *testing.T) *agent { return newAgentWith(t, nil) }

func newAgentWith(t *testing.T, id *pki.Identity) *agent {
	t.Helper()
	a := &agent{t: t, id: id, moment: webtest.Busy(), address: "127.0.0.1:0"}
	a.come()
	t.Cleanup(a.leave)
	return a
}

func (a *agent) url() string {
	if a.id != nil {
		return "https://" + a.address + "/"
	}
	return "http://" + a.address + "/"
}

func (a *agent) come() {
	a.t.Helper()
	l, err := net.Listen("tcp", a.address)
	for end := time.Now().Add(patience); err != nil && time.Now().Before(end); l, err = net.Listen("tcp", a.address) {
		time.Sleep(50 * time.Millisecond) // somebody has the port for a moment
	}
	if err != nil {
		a.t.Fatal(err)
	}
	a.address = l.Addr().String()
	a.page = web.New(web.Options{Runtime: &runtime.System{}, Look: func(context.Context) web.Snapshot {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.moment
	}})
	a.ended = make(chan error, 1)
	go func(page *web.Server, ended chan error) { ended <- page.Serve(l, a.id) }(a.page, a.ended)
}

// leave ends it; it may be called again.
func (a *agent) leave() {
	if a.page == nil {
		return
	}
	if err := errors.Join(a.page.Close(), <-a.ended); err != nil {
		a.t.Error(err)
	}
	a.page = nil
}

func (a *agent) change(f func(*web.Snapshot)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	next := a.moment
	next.Guests, next.Migrations, next.Status.Conditions = slices.Clone(next.Guests), slices.Clone(next.Migrations), slices.Clone(next.Status.Conditions)
	f(&next)
	a.moment = next
}

func needBrowser(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("a browser is not started in short tests")
	}
	if missing, err := lab.Missing(t.Context(), lab.BrowserPackages()...); err != nil || len(missing) > 0 {
		t.Skipf("a browser is needed: %v, %v; `lab install -browser` adds it", missing, err)
	}
}

// start starts a browser whose home is dir, until the test ends.
func start(t *testing.T, dir string) *Browser {
	t.Helper()
	b, err := Start(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// TestPage_InABrowser looks at a busy host, through one browser.
func TestPage_InABrowser(t *testing.T) {
	needBrowser(t)
	b := start(t, t.TempDir())
	for _, c := range []struct {
		name string
		run  func(*testing.T, *Browser)
	}{
		{"it is legible in light and in dark", legible},
		{"it fits a narrow screen", narrow},
		{"it shows what changes without being loaded again", changes},
		{"it says when the agent has gone, and comes back with it", goesAndComes},
		{"a guest's name does nothing", harmless},
		{"nothing but its own files runs or is asked", fenced},
		{"a guest that is pointed at is shown in the drawing", pointed},
		{"a full host is drawn in time", full},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, b) })
	}
}

// open opens the page, and holds at the end that nobody complained.
func open(t *testing.T, b *Browser, address string, width int) *Page {
	t.Helper()
	p, err := b.Open(t.Context(), address, width, 800)
	if err != nil {
		t.Fatal(err)
	}
	await(t, p, `!document.getElementById("live").hidden`)
	return p
}

func await(t *testing.T, p *Page, question string) {
	t.Helper()
	if err := p.Await(t.Context(), question); err != nil {
		var text string
		_ = p.Eval(t.Context(), "document.body.innerText", &text) // for whoever reads the failure
		t.Fatalf("%v\n%s\n%q", err, text, p.Complaints())
	}
}

func eval[T any](t *testing.T, p *Page, script string) T {
	t.Helper()
	var out T
	if err := p.Eval(t.Context(), script, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func quiet(t *testing.T, p *Page) {
	t.Helper()
	for _, c := range p.Complaints() {
		t.Errorf("the browser complains: %s", c)
	}
}

// picture leaves one for people, in build.
func picture(t *testing.T, p *Page, name string) {
	t.Helper()
	png, err := p.Picture(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join("..", "..", "build")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), png, 0o644); err != nil {
		t.Fatal(err)
	}
	if len(png) < 10<<10 {
		t.Errorf("%s has %d bytes: there is nothing on it", name, len(png))
	}
}

// contrasts gives the texts whose contrast with what is behind them is below what WCAG 2.2,
// 1.4.3 asks for: 4.5, of large ones 3. In the drawing that is the shape beside the text.
const contrasts = `(() => {
  const rgb = (c) => { const m = c.match(/[\d.]+/g).map(Number); return { r: m[0], g: m[1], b: m[2], a: m.length > 3 ? m[3] : 1 }; };
  const over = (top, below) => ({ r: top.r * top.a + below.r * (1 - top.a), g: top.g * top.a + below.g * (1 - top.a), b: top.b * top.a + below.b * (1 - top.a), a: 1 });
  const lum = (c) => { const f = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }; return 0.2126 * f(c.r) + 0.7152 * f(c.g) + 0.0722 * f(c.b); };
  const behind = (e) => {
    const layers = [];
    for (let at = e; at; at = at.parentElement) {
      const c = rgb(getComputedStyle(at).backgroundColor);
      if (c.a > 0) layers.push(c);
      if (c.a === 1) break;
    }
    return layers.reverse().reduce((below, top) => over(top, below), { r: 255, g: 255, b: 255, a: 1 });
  };
  const out = { seen: 0, poor: [] };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n = walk.nextNode(); n; n = walk.nextNode()) {
    const e = n.parentElement, style = getComputedStyle(e);
    if (!n.data.trim() || !e.getClientRects().length || style.visibility === "hidden" || e.closest("title")) continue;
    let ink = style.color, paper = behind(e), size = parseFloat(style.fontSize), bold = parseInt(style.fontWeight) >= 700;
    if (e.closest("svg")) {
      const shape = e.closest("g")?.querySelector(":scope > rect");
      ink = style.fill;
      const cell = e.closest("svg").querySelector("rect.cell");
      if (cell) paper = rgb(getComputedStyle(cell).fill);
      if (shape) { const f = rgb(getComputedStyle(shape).fill); f.a *= parseFloat(getComputedStyle(shape).fillOpacity); paper = over(f, paper); }
    }
    const a = lum(over(rgb(ink), paper)), c = lum(paper);
    const ratio = (Math.max(a, c) + 0.05) / (Math.min(a, c) + 0.05);
    out.seen++;
    if (ratio < (size >= 24 || bold && size >= 18.66 ? 3 : 4.5)) out.poor.push(n.data.trim().slice(0, 40) + ": " + ratio.toFixed(2));
  }
  return out;
})()`

func legible(t *testing.T, b *Browser) {
	a := newAgent(t)
	p := open(t, b, a.url(), 1120)
	var papers []string
	for _, scheme := range []string{"light", "dark"} {
		if err := p.Prefer(t.Context(), scheme); err != nil {
			t.Fatal(err)
		}
		got := eval[struct {
			Seen int
			Poor []string
		}](t, p, contrasts)
		if got.Seen < 150 {
			t.Errorf("%s: only %d texts were looked at", scheme, got.Seen)
		}
		slices.Sort(got.Poor)
		for _, poor := range slices.Compact(got.Poor) {
			t.Errorf("%s: too little contrast: %s", scheme, poor)
		}
		papers = append(papers, eval[string](t, p, `getComputedStyle(document.body).backgroundColor`))
		picture(t, p, "page-"+scheme+".png")
	}
	if papers[0] == papers[1] {
		t.Errorf("light and dark are both on %s", papers[0])
	}
	// A screen reader finds its way: one main heading, sections that are called something.
	if n := eval[int](t, p, `document.querySelectorAll("h1").length`); n != 1 {
		t.Errorf("%d main headings", n)
	}
	if n := eval[int](t, p, `[...document.querySelectorAll("section")].filter((s) => s.getAttribute("aria-label")).length`); n != 5 {
		t.Errorf("%d sections have names", n)
	}
	quiet(t, p)
}

func narrow(t *testing.T, b *Browser) {
	a := newAgent(t)
	p := open(t, b, a.url(), 360)
	if wide := eval[int](t, p, `document.documentElement.scrollWidth`); wide > 360 {
		what := eval[[]string](t, p, `[...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > 361 && !e.closest(".wide, .drawing")).map((e) => e.tagName + " " + e.className)`)
		t.Errorf("the page is %d wide on a screen of 360: %q", wide, what)
	}
	picture(t, p, "page-narrow.png")
	quiet(t, p)
}

func changes(t *testing.T, b *Browser) {
	a := newAgent(t)
	p := open(t, b, a.url(), 1120)
	// What is there only as long as the page is not loaded again, and what a reader has opened.
	eval[bool](t, p, `window.mark = true`)
	why := `document.querySelector("#history details")`
	eval[bool](t, p, why+`.open = true`)
	if value := eval[float64](t, p, `document.querySelector("#moves progress").value`); value != 62 {
		t.Errorf("the transfer is at %v", value)
	}
	a.change(func(m *web.Snapshot) {
		m.Migrations[1].Progress.MemoryRemaining = 1 << 30
		m.Status.Conditions[0].Health, m.Status.Health = api.HealthOK, api.HealthOK
	})
	await(t, p, `document.querySelector("#moves progress").value === 87`)
	await(t, p, `document.querySelector(".verdict.good") && document.title === "host-a.example: all is well"`)
	a.change(func(m *web.Snapshot) {
		m.Migrations[1].Outcome, m.Migrations[1].Status = migration.OutcomeCompleted, migration.StatusCompleted
	})
	await(t, p, `!document.querySelector("#moves progress") && document.querySelectorAll("#history tbody tr").length === 4`)
	if !eval[bool](t, p, `window.mark === true`) {
		t.Error("the page was loaded again")
	}
	if !eval[bool](t, p, why+`.open`) {
		t.Error("what the reader had opened is closed")
	}
	quiet(t, p)
}

func goesAndComes(t *testing.T, b *Browser) {
	a := newAgent(t)
	p := open(t, b, a.url(), 1120)
	eval[bool](t, p, `window.mark = true`)
	a.leave()
	await(t, p, `!document.getElementById("lost").hidden && document.getElementById("live").hidden`)
	if !eval[bool](t, p, `document.body.innerText.includes("database")`) {
		t.Error("what was there before has gone too")
	}
	picture(t, p, "page-lost.png")
	a.change(func(m *web.Snapshot) { m.Guests[0].Status = "PAUSED" })
	a.come()
	await(t, p, `document.getElementById("lost").hidden && document.body.innerText.includes("PAUSED")`)
	if !eval[bool](t, p, `window.mark === true`) {
		t.Error("the same agent came back, and the page was loaded again")
	}
	for _, c := range p.Complaints() {
		if !strings.Contains(c, "ERR_CONNECTION_REFUSED") && !strings.Contains(c, "ERR_INCOMPLETE_CHUNKED_ENCODING") { // that nobody answered
			t.Errorf("the browser complains: %s", c)
		}
	}
}

func harmless(t *testing.T, b *Browser) {
	a := newAgent(t)
	p := open(t, b, a.url(), 1120)
	a.change(func(m *web.Snapshot) { // as the page had it from the start, and as it is told it
		m.Guests[0].Name, m.Migrations[1].InstanceName, m.Migrations[3].Error.Message = webtest.Hostile, webtest.Hostile, webtest.Hostile
	})
	await(t, p, fmt.Sprintf(`document.querySelector("#moves").innerText.includes(%q)`, webtest.Hostile))
	if title := eval[string](t, p, `document.title`); !strings.HasPrefix(title, "host-a.example") {
		t.Errorf("the title is %q", title)
	}
	if n := eval[int](t, p, `document.querySelectorAll("img, body script, iframe, object, [onerror]").length`); n != 0 {
		t.Errorf("%d elements came of a name", n)
	}
	quiet(t, p)
}

func fenced(t *testing.T, b *Browser) {
	a := newAgent(t)
	p := open(t, b, a.url(), 1120)
	for what, try := range map[string]string{
		"script-src": `const s = document.createElement("script"); s.textContent = "window.taken = true"; document.body.append(s)`,
		"style-src":  `const s = document.createElement("style"); s.textContent = "body { display: none }"; document.body.append(s)`,
		"img-src":    `const i = document.createElement("img"); i.src = "http://127.0.0.2:9/x"; document.body.append(i)`,
		// Another port is another origin.
		"connect-src": `fetch("http://127.0.0.1:9/").catch(() => {})`,
		"form-action": `const f = document.createElement("form"); f.action = "http://127.0.0.1:9/"; document.body.append(f); f.submit()`,
	} {
		got := eval[string](t, p, `new Promise((say) => { document.addEventListener("securitypolicyviolation", (e) => say(e.effectiveDirective), { once: true }); setTimeout(() => say("nothing"), 30000); `+try+` })`)
		if !strings.HasPrefix(got, what) {
			t.Errorf("%s: %q was reported", what, got)
		}
	}
	if eval[bool](t, p, `window.taken === true || getComputedStyle(document.body).display === "none"`) {
		t.Error("what is not the page's own took effect")
	}
	p.Complaints() // those were asked for
}

func pointed(t *testing.T, b *Browser) {
	a := newAgent(t)
	p := open(t, b, a.url(), 1120)
	at := eval[[]float64](t, p, `(() => { const row = document.querySelector('#guests tr[data-instance="`+webtest.Database+`"] th'); row.scrollIntoView({ block: "center" }); const r = row.getBoundingClientRect(); return [r.x + 5, r.y + 5]; })()`)
	if err := p.Point(t.Context(), at[0], at[1]); err != nil {
		t.Fatal(err)
	}
	// Four CPUs, its pages, its function and its line below the drawing.
	await(t, p, `document.querySelectorAll('.berth-drawing g.pointed[data-instance="`+webtest.Database+`"]').length >= 6`)
	if n := eval[int](t, p, `document.querySelectorAll('.pointed:not([data-instance="`+webtest.Database+`"])').length`); n != 0 {
		t.Errorf("%d other parts are shown", n)
	}
	quiet(t, p)
}

// full is a host with some hundreds of guests and a long history.
func full(t *testing.T, b *Browser) {
	a := newAgent(t)
	a.change(func(m *web.Snapshot) {
		one, over := m.Guests[1], m.Migrations[2]
		for i := range 300 {
			one.Name, one.UUID = fmt.Sprintf("guest-%03d", i), fmt.Sprintf("00000000-0000-4000-8000-%012d", i)
			m.Guests = append(m.Guests, one)
			over.UUID = fmt.Sprintf("00000000-0000-4000-9000-%012d", i)
			m.Migrations = append(m.Migrations, over)
		}
	})
	begin := time.Now()
	p := open(t, b, a.url(), 1120)
	if n := eval[int](t, p, `document.querySelectorAll("#guests tbody tr").length`); n != 304 {
		t.Errorf("%d guests", n)
	}
	if n := eval[int](t, p, `document.querySelectorAll("#history tbody tr").length`); n != 50 {
		t.Errorf("%d moves that are over", n)
	}
	t.Logf("304 guests were there after %s, of which the page took %s ms", time.Since(begin).Round(time.Millisecond), eval[string](t, p, `performance.getEntriesByType("navigation")[0].domComplete.toFixed(0)`))
	quiet(t, p)
}
