package options_test

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/migration/options"
)

// TestMerge_OfSoundLayersIsSound draws layers that are each sound by themselves: whatever
// they say together can be carried out, the first one's words stand, and merging what came
// out changes nothing.
func TestMerge_OfSoundLayersIsSound(t *testing.T) {
	words := map[options.Kind][]string{
		options.KindRate: {"none", "20MiB/s", "1GiB/s"}, options.KindSize: {"64MiB", "1GiB"}, options.KindDuration: {"700ms", "2s", "10m"},
		options.KindPercent: {"10", "90"}, options.KindNumber: {"1", "2", "9"}, options.KindSwitch: {"on", "off"},
		options.KindText: {"none", "4:abort", "start:throttle=30+20,2:suspend", "2:post-copy,1:abort", "start:throttle,1:max-downtime=1s,2:post-copy"},
	}
	rng := rand.New(rand.NewPCG(10, 1))
	draw := func(from options.From) options.Layer {
		for {
			l := options.Layer{From: from}
			for _, o := range options.All() {
				if rng.IntN(6) > 0 {
					continue
				}
				texts := words[o.Kind]
				if texts == nil {
					texts = append(o.Words[:len(o.Words):len(o.Words)], "xbzrle,mt")[:len(o.Words)+rng.IntN(2)]
				}
				text := texts[rng.IntN(len(texts))]
				if o.None && rng.IntN(5) == 0 {
					text = "none"
				}
				_ = options.Set(&l.Live, o.Name, text) // one that cannot be is not said
			}
			if live, who := options.Merge(l); len(live.ValidateFrom(who)) == 0 {
				return l
			}
		}
	}
	for i := range 500 {
		request, flavor, config := draw(options.FromRequest), draw(options.FromFlavor), draw(options.FromConfig)
		live, from := options.Merge(request, flavor, config)
		if bad := live.ValidateFrom(from); len(bad) > 0 {
			t.Fatalf("%d: %+v\nrequest %+v\nflavor %+v\nconfig %+v", i, bad, request.Live, flavor.Live, config.Live)
		}
		alone, _ := options.Merge(request)
		for _, o := range options.All() {
			if o.Text(request.Live) != "" && (from[o.Name] != options.FromRequest || o.Text(live) != o.Text(alone)) {
				t.Fatalf("%d: the request says %s %s, and it is %q from %s", i, o.Flag, o.Text(request.Live), o.Text(live), from[o.Name])
			}
		}
		again, _ := options.Merge(options.Layer{From: options.FromRequest, Live: live})
		if diff := cmp.Diff(live, again); diff != "" {
			t.Fatalf("%d: merged once more (-once +twice):\n%s", i, diff)
		}
	}
}

// FuzzSet holds that what is read reads back as itself, and that nothing panics.
func FuzzSet(f *testing.F) {
	for i, o := range options.All() {
		f.Add(i, example[o.Name])
	}
	f.Fuzz(func(t *testing.T, i int, text string) {
		all := options.All()
		o := all[uint(i)%uint(len(all))]
		var once, twice options.Live
		if options.Set(&once, o.Name, text) != nil {
			return
		}
		if err := options.Set(&twice, o.Name, o.Text(once)); err != nil || !cmp.Equal(once, twice) {
			t.Fatalf("%s %q is %q, and that is %+v, %v", o.Name, text, o.Text(once), twice, err)
		}
	})
}
