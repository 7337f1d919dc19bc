package api

import (
	"encoding"
	"encoding/json"
	"net/http"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"berth/internal/version"
)

// OpenAPI is the document of the API, computed from the route table and the Go
// types of its bodies.
func OpenAPI() map[string]any {
	d := &document{schemas: map[string]any{}}
	paths := map[string]any{}
	for _, r := range table() {
		ops, ok := paths[r.path].(map[string]any)
		if !ok {
			ops = map[string]any{}
			paths[r.path] = ops
		}
		ops[strings.ToLower(r.method)] = d.operation(r)
	}
	return map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{
			"title":   "Berth",
			"version": version.Get().String(),
			"description": "The agent of one KVM host. On the unix socket the file's mode decides who may ask; over TLS a certificate: " +
				"an operator's, or another host's with its provider's name in " + headerHost + ". " +
				"Moves between hosts that share nothing need rights beside that: share-nothing of who asks, conduct of the host whose agent conducts. Durations are nanoseconds, sizes bytes unless the name says otherwise.",
		},
		"servers": []any{map[string]any{"url": "https://{host}:16515", "variables": map[string]any{"host": map[string]any{"default": "localhost"}}}},
		"paths":   paths,
		"components": map[string]any{
			"schemas": d.schemas,
			"responses": map[string]any{"Error": map[string]any{
				"description": "It was refused or failed; the kind decides what to do, the reasons say what would have to change.",
				"content":     map[string]any{"application/json": map[string]any{"schema": d.schema(reflect.TypeFor[ErrorBody]())}},
			}},
			"securitySchemes": map[string]any{"mutualTLS": map[string]any{"type": "mutualTLS"}},
		},
		"security": []any{map[string]any{"mutualTLS": []any{}}},
	}
}

type document struct{ schemas map[string]any }

var pathParameter = regexp.MustCompile(`\{(\w+)\}`)

func (d *document) operation(r route) map[string]any {
	var callers []string
	for _, c := range []caller{callerLocal, callerOperator, callerHost} {
		if r.allow&c != 0 {
			callers = append(callers, c.String())
		}
	}
	params := []any{}
	for _, m := range pathParameter.FindAllStringSubmatch(r.path, -1) {
		params = append(params, map[string]any{"name": m[1], "in": "path", "required": true, "schema": map[string]any{"type": "string"}})
	}
	if r.relayed {
		params = append(params, map[string]any{
			"name": "host", "in": "query", "schema": map[string]any{"type": "string"},
			"description": "Provider's name of another host, to which the agent passes the request on.",
		})
	}
	for _, q := range r.query {
		params = append(params, map[string]any{"name": q[0], "in": "query", "schema": map[string]any{"type": "string"}, "description": q[1]})
	}
	answer := mediaOf(r.frameOut, d.schema(r.out))
	if r.events != nil {
		answer = map[string]any{"text/event-stream": map[string]any{"schema": d.schema(r.out)}}
	}
	answered := "Answered to: " + strings.Join(callers, ", ") + "."
	if r.party != nil {
		answered += " " + partyWords[*r.party]
	}
	if r.fromHost() {
		answered += " " + passWords[r.act]
	}
	op := map[string]any{
		"operationId": r.name, "summary": r.summary, "parameters": params,
		"description": answered,
		"responses": map[string]any{
			strconv.Itoa(r.status): map[string]any{
				"description": http.StatusText(r.status),
				"content":     answer,
			},
			"default": map[string]any{"$ref": "#/components/responses/Error"},
		},
	}
	if r.in != nil {
		op["requestBody"] = map[string]any{
			"required": true, "content": mediaOf(r.frameIn, d.schema(r.in)),
		}
	}
	return op
}

// schema gives a type's JSON Schema; named structs become components.
func (d *document) schema(t reflect.Type) map[string]any {
	switch t {
	case reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case reflect.TypeFor[time.Duration]():
		return map[string]any{"type": "integer", "format": "int64", "description": "nanoseconds"}
	case reflect.TypeFor[Priority]():
		return prioritySchema()
	case reflect.TypeFor[json.RawMessage]():
		return map[string]any{}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return map[string]any{"anyOf": []any{d.schema(t.Elem()), map[string]any{"type": "null"}}}
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return map[string]any{"type": "string", "contentEncoding": "base64"}
		}
		return map[string]any{"type": "array", "items": d.schema(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": d.schema(t.Elem())}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return map[string]any{"type": "integer", "minimum": 0}
	case reflect.Float32, reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Struct:
		if t.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
			return map[string]any{"type": "string"}
		}
		return d.object(t)
	}
	return map[string]any{} // an interface: anything
}

func (d *document) object(t reflect.Type) map[string]any {
	name := schemaName(t)
	if _, done := d.schemas[name]; name != "" && !done {
		d.schemas[name] = nil // a type that holds itself ends here
		d.schemas[name] = d.fields(t)
	}
	if name == "" {
		return d.fields(t)
	}
	return map[string]any{"$ref": "#/components/schemas/" + name}
}

// schemaName is package and type; generic and unnamed types have none, and stand
// where they are used.
func schemaName(t reflect.Type) string {
	if t.Name() == "" || strings.Contains(t.Name(), "[") || t.NumField() == 0 {
		return ""
	}
	pkg := t.PkgPath()[strings.LastIndexByte(t.PkgPath(), '/')+1:]
	if pkg == "api" {
		return t.Name()
	}
	return pkg + "." + t.Name()
}

func (d *document) fields(t reflect.Type) map[string]any {
	properties, required := map[string]any{}, []any{}
	var walk func(reflect.Type)
	walk = func(t reflect.Type) {
		for i := range t.NumField() {
			f := t.Field(i)
			tag := f.Tag.Get("json")
			name, options, _ := strings.Cut(tag, ",")
			if f.Anonymous && tag == "" && f.Type.Kind() == reflect.Struct {
				walk(f.Type)
				continue
			}
			if !f.IsExported() || name == "-" {
				continue
			}
			if name == "" {
				name = f.Name
			}
			properties[name] = d.schema(f.Type)
			if !strings.Contains(options, "omit") {
				required = append(required, name)
			}
		}
	}
	walk(t)
	out := map[string]any{"type": "object", "properties": properties}
	if len(required) > 0 {
		out["required"] = required
	}
	return out
}
