package api

import (
	"encoding/json"
	"reflect"

	"berth/migration"
)

// SampleRequest gives a body that a route can read, with its type: of migration m-1 and instance
// i-1, whose source is the host named and whose conductor is host-c.
func SampleRequest(name, source string) (kind string, body []byte) {
	for _, r := range table() {
		if r.name != name {
			continue
		}
		if r.in == nil {
			return "", nil
		}
		v := reflect.New(r.in)
		if ref := v.Elem().FieldByName("Ref"); r.party != nil || ref.IsValid() {
			ref.Set(reflect.ValueOf(migration.Ref{Migration: "m-1", Instance: "i-1", Attempt: 1, Step: "step"}))
			fill(v.Elem().FieldByName("Args"), source)
		}
		if r.frameIn {
			head, err := frame(v.Interface())
			if err != nil {
				panic(err)
			}
			return frameType, append(head, *dataOf(v.Interface())...)
		}
		text, err := json.Marshal(v.Interface())
		if err != nil {
			panic(err)
		}
		return "application/json", text
	}
	panic("no route " + name)
}

// fill names source and conductor where arguments of a host operation do.
func fill(v reflect.Value, source string) {
	if v.Kind() != reflect.Struct {
		return
	}
	for i := range v.NumField() {
		f, name := v.Field(i), v.Type().Field(i).Name
		switch {
		case f.Kind() == reflect.String && (name == "Source" || name == "From"):
			f.SetString(source)
		case f.Kind() == reflect.String && name == "Conductor":
			f.SetString("host-c")
		case name == "Source" && f.Kind() == reflect.Struct:
			f.FieldByName("Name").SetString(source)
		default:
			fill(f, source)
		}
	}
}
