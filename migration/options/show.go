package options

import (
	"cmp"
	"fmt"
	"strings"
)

// Value is one option of a migration as people see it.
type Value struct {
	Name  string `json:"name"`  // in JSON
	Flag  string `json:"flag"`  // on the command line
	Value string `json:"value"` // as Set reads it, or in words where nobody said it
	From  From   `json:"from"`
}

// Effective lists merged options and who said each, all of them, in the table's order.
func Effective(l Live, from map[string]From) []Value {
	out := make([]Value, 0, len(table))
	for _, o := range table {
		out = append(out, Value{Name: o.Name, Flag: o.Flag, Value: cmp.Or(o.Text(l), o.Unsaid, "none"), From: cmp.Or(from[o.Name], FromDefault)})
	}
	return out
}

// Markdown is the table for people.
func Markdown() string {
	var b strings.Builder
	b.WriteString(`# Options of live migrations

Each can be said in a request (` + "`berth migrate`" + `), by the guest's flavor, as the extra spec
` + "`" + SpecPrefix + "KEY`" + `, and in the configuration, as ` + "`KEY`" + ` in ` + "`[migration]`" + `. The first of
them that says it counts, and what a later one says that cannot be together with it is left
out. Each migration keeps what it was carried out with, and who said it. ` + "`none`" + ` is said where
there is to be no bound whatever the others say. Of a guest that is off the bandwidth alone
counts. What a guest or a pair of hosts cannot do is refused before anything moves, with the
reason. This page is made from the program's own table.

| option | key | values | default | virsh | nova.conf | what it does |
|---|---|---|---|---|---|---|
`)
	none := func(text string) string {
		if text == "" {
			return "–"
		}
		return "`" + text + "`"
	}
	for _, o := range table {
		help := o.Help
		if o.Since != "" {
			help += "; libvirt " + o.Since
		}
		fmt.Fprintf(&b, "| `--%s` | `%s` | %s | %s | %s | %s | %s |\n", o.Flag, o.Key, o.Want(), cmp.Or(o.Text(Default()), o.Unsaid), none(o.Virsh), none(o.Nova), help)
	}
	return b.String()
}
