package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"berth/agent/api"
	"berth/agent/metrics"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/test/docs"
	"berth/topology"
)

// The pages of docs/reference are written from the program: from the tree of its commands,
// the table of the API's routes, the sample configuration, the registry of metrics and the
// exit codes. `go test ./cmd/berth -run Reference -update` writes them anew.

const referenceDir = "../../docs/reference"

// written says above each page where it is from.
const written = "This page is written from the program; `go test ./cmd/berth -run Reference -update` writes it.\n\n"

func TestReference_CommandLineIsTheTreeOfCommands(t *testing.T) {
	for _, name := range []string{"BERTH_CONNECT", "BERTH_CERT", "BERTH_KEY", "BERTH_CA"} {
		t.Setenv(name, "") // defaults come from them
	}
	root := (&app{parts: linked()}).root()
	var b strings.Builder
	b.WriteString("# The command line\n\n" + written)
	b.WriteString("`berth COMMAND --help` says the same. Exit codes are on [a page of their own](exit-codes.md).\n\n")
	b.WriteString("Flags of every command:\n\n" + fenced("text", root.PersistentFlags().FlagUsages()))
	b.WriteString("| command | what it does |\n|---|---|\n")
	eachCommand(root, func(c *cobra.Command) {
		if !c.HasAvailableSubCommands() || runsAlone(c) {
			fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", c.CommandPath(), docs.Anchor(c.CommandPath()), inCell(c.Short))
		}
	})
	eachCommand(root, func(c *cobra.Command) {
		fmt.Fprintf(&b, "\n## %s\n\n%s.\n\n", c.CommandPath(), strings.TrimSuffix(plain(c.Short), "."))
		if len(c.Aliases) > 0 {
			fmt.Fprintf(&b, "Also: `%s`.\n\n", strings.Join(c.Aliases, "`, `"))
		}
		if c.HasAvailableSubCommands() {
			for _, sub := range c.Commands() {
				if sub.IsAvailableCommand() {
					fmt.Fprintf(&b, "- [`%s`](#%s)\n", sub.CommandPath(), docs.Anchor(sub.CommandPath()))
				}
			}
			b.WriteString("\n")
		}
		text := "usage: " + c.UseLine() + "\n"
		if c.Long != "" {
			text += "\n" + strings.TrimSpace(c.Long) + "\n"
		}
		if c.Example != "" {
			text += "\nexamples:\n" + strings.TrimRight(c.Example, "\n") + "\n"
		}
		if flags := c.NonInheritedFlags().FlagUsages(); flags != "" {
			text += "\nflags:\n" + flags
		}
		b.WriteString(strings.TrimSuffix(fenced("text", text), "\n"))
	})
	golden(t, filepath.Join(referenceDir, "command-line.md"), b.String())
}

// eachCommand gives every command that is shown, a group before what is in it.
func eachCommand(c *cobra.Command, f func(*cobra.Command)) {
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" {
			f(sub)
			eachCommand(sub, f)
		}
	}
}

func TestReference_ExitCodesAreThoseOfTheCode(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Exit codes and kinds of errors\n\n" + written)
	b.WriteString(fenced("text", strings.TrimSpace(exitCodesHelp)))
	b.WriteString("The kind of an error is what `error.kind` says of it, with `--json` and in the API:\n\n| kind | exit code |\n|---|---|\n")
	for _, k := range []fault.Kind{
		fault.Internal, fault.Invalid, fault.DoesNotFit, fault.Forbidden, fault.NotFound, fault.Busy, fault.Exists, fault.GenerationConflict,
		fault.Unavailable, fault.Undone, fault.InDoubt,
	} {
		fmt.Fprintf(&b, "| `%s` | %d |\n", string(k), codeOf(fault.New(k, "some doing")))
	}
	b.WriteString("\nWith `--json` an error is one object on standard error:\n\n")
	var body strings.Builder
	printError(&body, fault.Refuse(fault.DoesNotFit, "claim on host-b", fault.Reason{
		Code: "memory_short", Message: "memory: want 4096 MiB, 1024 MiB free", Want: "4096 MiB", Have: "1024 MiB", Change: "free 3072 MiB on host-b",
	}), true)
	b.WriteString(fenced("json", body.String()))
	b.WriteString("`code` is stable, `message` and `change` are for people. A field that has nothing to say is left out.\n")
	golden(t, filepath.Join(referenceDir, "exit-codes.md"), b.String())
}

func TestReference_AccessIsTheTableThatTheServerDecidesBy(t *testing.T) {
	golden(t, filepath.Join(referenceDir, "access.md"), "# Who may ask an agent for what\n\n"+written+
		`An *unknown caller* has no certificate of the site's authority. *no* is a refusal with its reason. *right relay* is given by `+"`[rights] relay`"+` or a certificate, and nobody has it by default.
A *party* is known by the asked host's own records; where a cell names roles, the others among the parties are refused. For a migration of which the asked host has nothing on record yet,
a host that will be its conductor may make the first contact; [who may do what](../rights.md) says when. What changes something is further narrowed by `+"`[rights] operate`"+`.
A test asks every route as each of these visitors over mutual TLS, as a host with a good certificate that lies about whom it asks for too.

`+api.AccessTable())
}

// sampleKey is a key of the sample configuration with what its comment says.
type sampleKey struct{ section, name, value, comment string }

var (
	sectionLine = regexp.MustCompile(`^\[([a-z_.]+)\]$`)
	keyLine     = regexp.MustCompile(`^([a-z_]+) = (.+)$`)
)

// readSample takes the sample apart: its sections and keys in order, and what stands above each.
// The comment of a section is a key without a name.
func readSample(t *testing.T) (keys []sampleKey) {
	t.Helper()
	text, err := os.ReadFile("../../packaging/berth.toml")
	if err != nil {
		t.Fatal(err)
	}
	section, comment := "", ""
	end := func() {
		if strings.TrimSpace(comment) != "" {
			keys = append(keys, sampleKey{section: section, comment: comment})
		}
		comment = ""
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		switch m := sectionLine.FindStringSubmatch(line); {
		case m != nil:
			end()
			section = m[1]
			keys = append(keys, sampleKey{section: section})
		case strings.HasPrefix(line, "#"):
			comment += strings.TrimPrefix(strings.TrimPrefix(line, "#"), " ") + "\n"
		case line == "":
			end()
		default:
			m := keyLine.FindStringSubmatch(line)
			if m == nil {
				t.Fatalf("packaging/berth.toml: %q is neither a section nor a key on one line", line)
			}
			keys = append(keys, sampleKey{section: section, name: m[1], value: m[2], comment: comment})
			comment = ""
		}
	}
	end()
	return keys
}

// reloads are the keys that a running agent takes from a reload.
func reloads(t *testing.T) map[string]bool {
	t.Helper()
	changed := config.Default()
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		if v.Type() == reflect.TypeFor[topology.CPUSet]() {
			v.Set(reflect.ValueOf(topology.NewCPUSet(0)))
			return
		}
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				walk(v.Field(i))
			}
		case reflect.String:
			v.SetString(v.String() + "x")
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.Int, reflect.Int64:
			v.SetInt(v.Int() + 1)
		case reflect.Uint, reflect.Uint64, reflect.Uint32:
			v.SetUint(v.Uint() + 1)
		case reflect.Float64:
			v.SetFloat(v.Float() + 1)
		case reflect.Slice, reflect.Map:
			if v.IsNil() {
				t.Fatalf("a default of type %s is nil", v.Type())
			}
			v.SetZero()
		default:
			t.Fatalf("a key of kind %s", v.Kind())
		}
	}
	walk(reflect.ValueOf(&changed).Elem())
	out := map[string]bool{}
	for _, c := range config.Diff(config.Default(), changed) {
		out[c.Key] = c.Reloadable
	}
	return out
}

func TestReference_ConfigurationIsTheSample(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Configuration\n\n" + written)
	b.WriteString("The file is `/etc/berth/berth.toml` (`--config` names another). Files in `/etc/berth/berth.toml.d/*.toml` are laid over it in name order, and a list or\n" +
		"value in a later file stands instead of the earlier one. A key that nothing reads is an error. The words are those of the sample, `packaging/berth.toml`.\n" +
		"*Reload* means that `systemctl reload berth`, or SIGHUP, is enough; *restart* that the agent has to be restarted, which touches no guest.\n")
	takes := reloads(t)
	seen := map[string]bool{}
	above := "" // the last key of which something was said
	for _, k := range readSample(t) {
		switch {
		case k.section == "":
			continue // what the head of the sample says stands above
		case k.name == "" && k.comment == "":
			fmt.Fprintf(&b, "\n## [%s]\n", k.section)
			if when, is := takes[k.section]; is {
				seen[k.section] = true
				fmt.Fprintf(&b, "\n%s.\n", reloadWords(when))
			}
		case k.name == "":
			if strings.Contains(k.comment, "[hooks.") {
				fmt.Fprintf(&b, "\n## [hooks]\n\n%s.\n", reloadWords(takes["hooks"]))
			}
			b.WriteString("\n" + strings.TrimSuffix(exampleOf(k.section, k.comment), "\n"))
		default:
			key := k.section + "." + k.name
			when, is := takes[key]
			if !is {
				t.Errorf("the sample has %s, which is no key of the configuration", key)
			}
			seen[key] = true
			fmt.Fprintf(&b, "\n### %s\n\nDefault `%s`. %s.\n\n", key, k.value, reloadWords(when))
			if k.comment == "" {
				fmt.Fprintf(&b, "See `%s`.\n", above)
				continue
			}
			above = key
			words, example := proseAndExample(strings.NewReplacer(" (reload)", "", "(reload) ", "", "(reload)", "").Replace(k.comment))
			b.WriteString(words)
			if example != "" {
				b.WriteString("\n" + strings.TrimSuffix(exampleOf(k.section, example), "\n"))
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(takes)) {
		if !seen[key] && key != "hooks" && key != "peers" { // which have no keys of their own
			t.Errorf("the sample says nothing of %s", key)
		}
	}
	golden(t, filepath.Join(referenceDir, "configuration.md"), b.String())
}

func reloadWords(reload bool) string {
	if reload {
		return "Reload"
	}
	return "Restart"
}

// exampleOf is the example in a comment, as a file that has nothing else; words beside it
// stay comments.
func exampleOf(section, text string) string {
	var b strings.Builder
	if !strings.Contains(text, "\n[") {
		fmt.Fprintf(&b, "[%s]\n", section)
	}
	for line := range strings.Lines(text) {
		if !strings.ContainsAny(line[:1], "[] \"") && !keyLine.MatchString(strings.TrimSuffix(line, "\n")) {
			line = "# " + line
		}
		b.WriteString(line)
	}
	return fenced("toml", b.String())
}

// proseAndExample parts a comment before the example that ends it: from a line that sets a key on.
func proseAndExample(text string) (words, example string) {
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines {
		if keyLine.MatchString(strings.TrimSuffix(line, "\n")) || strings.HasPrefix(line, `"`) {
			return inColumns(strings.Join(lines[:i], "")), strings.Join(lines[i:], "")
		}
	}
	return inColumns(text), ""
}

// inColumns is a comment in Markdown; one that is laid out in columns stays so.
func inColumns(text string) string {
	if strings.Contains(text, "\n  ") {
		return strings.TrimSuffix(fenced("text", text), "\n")
	}
	return plain(text)
}

// apiRoute is one operation of the OpenAPI document.
type apiRoute struct {
	path, method string
	op           map[string]any
}

// betweenHosts reports whether the operation is answered to other hosts alone: it is no part of
// what callers outside of Berth may use.
func (o apiRoute) betweenHosts() bool {
	return strings.Contains(o.op["description"].(string), "Answered to: host.")
}

// TestReference_APIIsTheTableOfRoutes writes two pages: what callers may use, and what hosts ask
// of each other. A body that both have stands on the first.
func TestReference_APIIsTheTableOfRoutes(t *testing.T) {
	type object = map[string]any
	doc := api.OpenAPI()
	schemas := doc["components"].(object)["schemas"].(object)
	paths := doc["paths"].(object)
	var public, internal []apiRoute
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		ops := paths[path].(object)
		for _, method := range slices.Sorted(maps.Keys(ops)) {
			if o := (apiRoute{path, strings.ToUpper(method), ops[method].(object)}); o.betweenHosts() {
				internal = append(internal, o)
			} else {
				public = append(public, o)
			}
		}
	}
	if len(public) < 30 || len(internal) < 30 {
		t.Errorf("%d routes for callers and %d between hosts: the pages are not told apart", len(public), len(internal))
	}
	shown := map[string]bool{}
	for _, o := range public {
		bodiesOf(o.op, schemas, shown)
	}
	var here, there []string
	for _, name := range slices.Sorted(maps.Keys(schemas)) {
		if shown[name] {
			here = append(here, name)
		} else {
			there = append(there, name)
		}
	}
	head := "# The API\n\n" + written +
		"`GET /v1/openapi.json` has all of it in OpenAPI 3.1, as the agent that is asked knows it.\n\n" + plain(doc["info"].(object)["description"].(string)) + "\n\n" +
		"An error has a status from 400 on and the body of [exit codes and kinds of errors](exit-codes.md). `local` is who may use the agent's socket. " +
		"What hosts ask of each other in a migration is on [a page of its own](host-operations.md).\n\n"
	golden(t, filepath.Join(referenceDir, "api.md"), head+apiPage(public, schemas, here))

	head = "# What hosts ask of each other\n\n" + written +
		"These routes are answered to hosts alone, and may change with every version. For programs of your own there is [the API](api.md).\n\n"
	page := apiPage(internal, schemas, there)
	for _, name := range here {
		link := "](#" + docs.Anchor(name) + ")"
		page = strings.ReplaceAll(page, "["+name+link, "["+name+"](api.md#"+docs.Anchor(name)+")")
	}
	golden(t, filepath.Join(referenceDir, "host-operations.md"), head+page)
}

// bodiesOf adds the names of all bodies that v refers to, also by other bodies.
func bodiesOf(v any, schemas map[string]any, names map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		if ref, is := v["$ref"].(string); is {
			if name := ref[strings.LastIndexByte(ref, '/')+1:]; !names[name] {
				names[name] = true
				bodiesOf(schemas[name], schemas, names)
			}
		}
		for _, one := range v {
			bodiesOf(one, schemas, names)
		}
	case []any:
		for _, one := range v {
			bodiesOf(one, schemas, names)
		}
	}
}

// apiPage is a table of routes, each with what it takes and answers, and the bodies of these names.
func apiPage(all []apiRoute, schemas map[string]any, names []string) string {
	type object = map[string]any
	var b strings.Builder
	b.WriteString("| route | what it does |\n|---|---|\n")
	for _, o := range all {
		fmt.Fprintf(&b, "| [`%s %s`](#%s) | %s |\n", o.method, o.path, docs.Anchor(o.op["operationId"].(string)), inCell(o.op["summary"].(string)))
	}
	for _, o := range all {
		fmt.Fprintf(&b, "\n## %s\n\n`%s %s`\n\n%s %s\n", o.op["operationId"], o.method, o.path, plain(o.op["summary"].(string)), plain(o.op["description"].(string)))
		for i, p := range o.op["parameters"].([]any) {
			if i == 0 {
				b.WriteString("\n")
			}
			p := p.(object)
			what, _ := p["description"].(string)
			fmt.Fprintf(&b, "- `%s` in the %s%s\n", p["name"], p["in"], plain(strings.TrimRight(": "+what, ": ")))
		}
		if len(o.op["parameters"].([]any)) == 0 {
			b.WriteString("\n")
		}
		if in, is := o.op["requestBody"].(object); is {
			fmt.Fprintf(&b, "- takes %s\n", contentWords(in["content"].(object)))
		}
		for status, answer := range o.op["responses"].(object) {
			if status != "default" {
				fmt.Fprintf(&b, "- answers with %s: %s\n", status, contentWords(answer.(object)["content"].(object)))
			}
		}
	}
	b.WriteString("\n# Bodies\n\nWhat is *optional* may be left out.\n")
	for _, name := range names {
		s, _ := schemas[name].(object)
		fmt.Fprintf(&b, "\n## %s\n", name)
		properties, _ := s["properties"].(object)
		if len(properties) == 0 {
			b.WriteString("\nAn object without fields.\n")
			continue
		}
		required := map[any]bool{}
		if list, is := s["required"].([]any); is {
			for _, r := range list {
				required[r] = true
			}
		}
		b.WriteString("\n| field | type | |\n|---|---|---|\n")
		for _, field := range slices.Sorted(maps.Keys(properties)) {
			optional := "optional"
			if required[field] {
				optional = ""
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", field, schemaWords(properties[field]), optional)
		}
	}
	return b.String()
}

// contentWords are a body's type and schema.
func contentWords(content map[string]any) string {
	for _, kind := range slices.Sorted(maps.Keys(content)) {
		schema, _ := content[kind].(map[string]any)["schema"]
		switch words := schemaWords(schema); kind {
		case "application/json":
			return words
		case "text/event-stream":
			return "server-sent events, each of " + words
		default:
			return words + ", as `" + kind + "`"
		}
	}
	return "nothing"
}

// schemaWords are a JSON schema in a few words, with links to bodies that have a name.
func schemaWords(v any) string {
	s, _ := v.(map[string]any)
	if ref, is := s["$ref"].(string); is {
		name := ref[strings.LastIndexByte(ref, '/')+1:]
		return fmt.Sprintf("[%s](#%s)", name, docs.Anchor(name))
	}
	if list, is := s["anyOf"].([]any); is {
		var words []string
		for _, one := range list {
			words = append(words, schemaWords(one))
		}
		return strings.Join(words, " or ")
	}
	if list, is := s["oneOf"].([]any); is {
		var words []string
		for _, one := range list {
			words = append(words, schemaWords(one))
		}
		return strings.Join(words, " or ")
	}
	words, _ := s["type"].(string)
	switch {
	case words == "array":
		return "list of " + schemaWords(s["items"])
	case words == "object" && s["additionalProperties"] != nil:
		return "object of " + schemaWords(s["additionalProperties"])
	case s["format"] == "date-time":
		return "time"
	case s["contentEncoding"] != nil:
		return fmt.Sprintf("%s, %s", words, s["contentEncoding"])
	case s["description"] == "nanoseconds":
		return "integer, nanoseconds"
	}
	return cmp.Or(words, "anything")
}

var metricParts = regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: "(.*?)", (?:unit: "[^"]*", )?constLabels: \{.*\}, variableLabels: \{(.*)\}\}$`)

func TestReference_MetricsAreThoseOfTheRegistry(t *testing.T) {
	recorded, err := os.ReadFile("../../agent/metrics/testdata/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\w+) (\w+)$`).FindAllStringSubmatch(string(recorded), -1) {
		kinds[m[1]] = m[2]
	}
	descs := make(chan *prometheus.Desc)
	go func() { defer close(descs); metrics.New().Describe(descs) }()
	rows := map[string]string{}
	for d := range descs {
		m := metricParts.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("%s cannot be read", d)
		}
		labels := "–"
		if m[3] != "" {
			labels = "`" + strings.Join(strings.Split(m[3], ","), "`, `") + "`"
		}
		rows[m[1]] = fmt.Sprintf("| `%s` | %s | %s | %s |\n", m[1], cmp.Or(kinds[m[1]], kindByName(m[1])), labels, inCell(strings.ReplaceAll(m[2], `\"`, `"`)))
	}
	var b strings.Builder
	b.WriteString("# Metrics\n\n" + written)
	b.WriteString("Served at `/metrics` of `[metrics] listen` (127.0.0.1:9178). What is shown was read before the scrape; nothing is asked in it.\n\n")
	b.WriteString("| metric | type | labels | what it is |\n|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		b.WriteString(rows[name])
	}
	golden(t, filepath.Join(referenceDir, "metrics.md"), b.String())
}

// kindByName is the type that a name stands for by Prometheus' own conventions.
func kindByName(name string) string {
	if strings.HasSuffix(name, "_total") {
		return "counter"
	}
	return "gauge"
}

// fenced is text between fences that it cannot end.
func fenced(language, text string) string {
	return "```" + language + "\n" + strings.TrimRight(text, "\n") + "\n```\n\n"
}

// plain is text of the program's in Markdown, where the angle brackets of a placeholder
// would be a tag, and where a line may begin with a mark.
func plain(text string) string {
	return strings.NewReplacer("<", "&lt;", "*", `\*`).Replace(text)
}

// inCell is plain in a table.
func inCell(text string) string { return strings.ReplaceAll(plain(text), "|", `\|`) }
