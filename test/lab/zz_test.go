package lab

import ("testing";"strings")

func TestZZ(t *testing.T) {
	Require(t)
	ctx := ctx1(t)
	l := Start(t, Options{NoLibvirtd: true})
	a, b := l.Hosts[0], l.Hosts[1]
	show := func(s string) {
		out, err := l.Switch.Exec(ctx, "ip", "-br", "link")
		n, _ := b.Exec(ctx, "ip", "neigh")
		t.Logf("%s: %v\n%s\nb: %s", s, err, out, n)
	}
	out, err := b.Exec(ctx, "ping", "-c1", "-W1", SwitchIP); t.Log(strings.TrimSpace(out), err)
	show("before")
	if err := a.PowerOff(); err != nil { t.Fatal(err) }
	show("off")
	if err := a.PowerOn(ctx); err != nil { t.Fatal(err) }
	show("on")
	out, err = b.Exec(ctx, "ping", "-c2", "-W1", SwitchIP); t.Log(strings.TrimSpace(out), err)
	show("after")
}
