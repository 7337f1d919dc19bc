// Package operationtest makes hosts of values with methods, for fakes and deliberate breakages. A
// method stands for the operation of its name: PrepResize(ctx, ref, in) (out, error) for
// prep-resize. Input and answer are left out where the operation has none.
package operationtest

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// Ask does an operation by the value's method that stands for it; fault.Invalid where it has none. A
// method with other types than its operation's panics: it would never be asked.
func Ask(ctx context.Context, v any, ref migration.Ref, op *migration.Operation, in any) (any, error) {
	m := reflect.ValueOf(v).MethodByName(Method(op))
	if !m.IsValid() {
		return nil, fault.New(fault.Invalid, "%T has no operation %s", v, op.Name)
	}
	return call(op, m)(ctx, ref, in)
}

// Over is a host of which the methods of a value replace operations. The value embeds the host that
// does all others, or is one.
func Over(v migration.Host) migration.Host { return over{v} }

type over struct{ migration.Host }

// Ask implements migration.Host.
func (o over) Ask(ctx context.Context, ref migration.Ref, op *migration.Operation, in any) (any, error) {
	if reflect.ValueOf(o.Host).MethodByName(Method(op)).IsValid() {
		return Ask(ctx, o.Host, ref, op, in)
	}
	return o.Host.Ask(ctx, ref, op, in)
}

// Method is the name of the method that stands for an operation.
func Method(op *migration.Operation) string {
	var out strings.Builder
	for _, part := range strings.Split(op.Name, "-") {
		out.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return out.String()
}

func call(op *migration.Operation, m reflect.Value) func(context.Context, migration.Ref, any) (any, error) {
	none := reflect.TypeFor[operation.None]()
	in, answer, t := input(op), reflect.TypeOf(op.NewAnswer()).Elem(), m.Type()
	takes, gives := 2, 1
	if in != none {
		takes = 3
	}
	if answer != none {
		gives = 2
	}
	if t.NumIn() != takes || t.NumOut() != gives || takes == 3 && t.In(2) != in || gives == 2 && t.Out(0) != answer {
		panic(fmt.Sprintf("method for operation %s is %s, which takes %s and answers %s", op.Name, t, in, answer))
	}
	return func(ctx context.Context, ref migration.Ref, arg any) (any, error) {
		args := []reflect.Value{reflect.ValueOf(ctx), reflect.ValueOf(ref)}
		if takes == 3 {
			args = append(args, reflect.ValueOf(arg))
		}
		out := m.Call(args)
		err, _ := out[gives-1].Interface().(error)
		if gives == 1 {
			return operation.None{}, err
		}
		return out[0].Interface(), err
	}
}

// input is the type of an operation's input.
func input(op *migration.Operation) reflect.Type {
	_, in := op.Unpack(op.NewRequest())
	return reflect.TypeOf(in)
}
