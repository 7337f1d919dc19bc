package rpc

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"strings"
	"sync"

	golibvirt "github.com/digitalocean/go-libvirt"
)

// The library's decoder believes every length it reads: one word of a reply that
// says 2,000,000,000 makes it ask for as many elements before it looks whether
// they are there, and the process is gone; no recover helps against that. So what
// the daemon sends is measured against what it should be, before the library
// sees it: each length must be covered by bytes that are there, each packet must
// end where its shape does.

// The programs of libvirt's protocol.
const (
	programRemote = 0x20008086 // remote_protocol.x
	programQEMU   = 0x20008087 // qemu_protocol.x
)

// procedure names one procedure of one program.
type procedure struct{ program, number uint32 }

func (p procedure) String() string { return fmt.Sprintf("%d of program %#x", p.number, p.program) }

// shapes are what packets consist of, by procedure; nil for nothing.
type shapes map[procedure]reflect.Type

// replies are the shapes of the answers to the procedures that this package
// calls. A call that is missing here fails with its first answer, and a test says
// so before.
var replies = sync.OnceValue(func() shapes {
	out := of(map[uint32]any{
		1: nil, 2: nil, 12: nil, 28: nil, 29: nil, 33: nil, 34: nil, 164: nil, 166: nil, 207: nil, 231: nil, 317: nil,
		364: nil, 375: nil, 442: nil, 78: nil, 80: nil, 83: nil, 184: nil,
		183: golibvirt.DomainHasManagedSaveImageRet{}, 274: golibvirt.DomainListAllSnapshotsRet{}, 413: golibvirt.DomainListAllCheckpointsRet{},
		3: golibvirt.ConnectGetTypeRet{}, 4: golibvirt.ConnectGetVersionRet{}, 7: golibvirt.ConnectGetCapabilitiesRet{},
		14: golibvirt.DomainGetXMLDescRet{}, 15: golibvirt.DomainGetAutostartRet{}, 16: golibvirt.DomainGetInfoRet{},
		23: golibvirt.DomainLookupByNameRet{}, 24: golibvirt.DomainLookupByUUIDRet{}, 59: golibvirt.ConnectGetHostnameRet{},
		43: golibvirt.NetworkGetXMLDescRet{}, 44: golibvirt.NetworkGetAutostartRet{}, 46: golibvirt.NetworkLookupByNameRet{},
		84: golibvirt.StoragePoolLookupByNameRet{}, 87: golibvirt.StoragePoolGetInfoRet{}, 88: golibvirt.StoragePoolGetXMLDescRet{},
		89: golibvirt.StoragePoolGetAutostartRet{}, 95: golibvirt.StorageVolLookupByNameRet{}, 98: golibvirt.StorageVolGetInfoRet{},
		100: golibvirt.StorageVolGetPathRet{}, 141: golibvirt.SecretLookupByUUIDRet{}, 147: golibvirt.SecretLookupByUsageRet{},
		152: golibvirt.NetworkIsActiveRet{}, 155: golibvirt.StoragePoolIsPersistentRet{},
		60: golibvirt.ConnectSupportsFeatureRet{}, 66: golibvirt.AuthListRet{}, 70: golibvirt.AuthPolkitRet{},
		110: golibvirt.ConnectGetUriRet{}, 113: golibvirt.NodeDeviceLookupByNameRet{}, 114: golibvirt.NodeDeviceGetXMLDescRet{},
		115: golibvirt.NodeDeviceGetParentRet{}, 151: golibvirt.DomainIsPersistentRet{}, 157: golibvirt.ConnectGetLibVersionRet{},
		158: golibvirt.ConnectCompareCPURet{}, 159: golibvirt.DomainMemoryStatsRet{}, 163: golibvirt.DomainGetJobInfoRet{},
		194: golibvirt.DomainGetBlockInfoRet{}, 196: golibvirt.DomainCreateWithFlagsRet{}, 203: golibvirt.ConnectGetSysinfoRet{},
		212: golibvirt.DomainGetStateRet{}, 229: golibvirt.DomainGetControlInfoRet{}, 238: golibvirt.DomainGetBlockJobInfoRet{},
		242: golibvirt.DomainMigrateGetMaxSpeedRet{}, 273: golibvirt.ConnectListAllDomainsRet{},
		285: golibvirt.ConnectListAllNodeDevicesRet{}, 298: golibvirt.DomainGetJobStatsRet{},
		305: golibvirt.DomainMigratePerform3ParamsRet{}, 312: golibvirt.ConnectGetCPUModelNamesRet{},
		316: golibvirt.ConnectDomainEventCallbackRegisterAnyRet{}, 335: golibvirt.DomainFsfreezeRet{},
		336: golibvirt.DomainFsthawRet{}, 342: golibvirt.ConnectGetDomainCapabilitiesRet{},
		344: golibvirt.ConnectGetAllDomainStatsRet{}, 350: golibvirt.DomainDefineXMLFlagsRet{},
		374: golibvirt.ConnectNodeDeviceEventRegisterAnyRet{}, 387: golibvirt.DomainMigrateGetMaxDowntimeRet{},
		393: golibvirt.ConnectCompareHypervisorCPURet{}, 394: golibvirt.ConnectBaselineHypervisorCPURet{},
		395: golibvirt.NodeGetSevInfoRet{}, 418: golibvirt.DomainGetGuestInfoRet{},
	})
	out[procedure{programQEMU, 1}] = reflect.TypeFor[golibvirt.QEMUDomainMonitorCommandRet]()
	out[procedure{programQEMU, 3}] = reflect.TypeFor[golibvirt.QEMUDomainAgentCommandRet]()
	return out
})

// events are the shapes of the events that may be subscribed to.
var events = sync.OnceValue(func() shapes {
	return of(map[uint32]any{
		318: golibvirt.DomainEventCallbackLifecycleMsg{}, 319: golibvirt.DomainEventCallbackRebootMsg{},
		322: golibvirt.DomainEventCallbackIOErrorMsg{}, 324: golibvirt.DomainEventCallbackIOErrorReasonMsg{},
		325: golibvirt.DomainEventCallbackControlErrorMsg{}, 326: golibvirt.DomainEventCallbackBlockJobMsg{},
		327: golibvirt.DomainEventCallbackDiskChangeMsg{}, 328: golibvirt.DomainEventCallbackTrayChangeMsg{},
		331: golibvirt.DomainEventCallbackBalloonChangeMsg{}, 333: golibvirt.DomainEventCallbackDeviceRemovedMsg{},
		346: golibvirt.DomainEventCallbackTunableMsg{}, 348: golibvirt.DomainEventCallbackAgentLifecycleMsg{},
		354: golibvirt.DomainEventCallbackDeviceAddedMsg{}, 359: golibvirt.DomainEventCallbackMigrationIterationMsg{},
		363: golibvirt.DomainEventCallbackJobCompletedMsg{}, 367: golibvirt.DomainEventCallbackDeviceRemovalFailedMsg{},
		376: golibvirt.NodeDeviceEventLifecycleMsg{}, 377: golibvirt.NodeDeviceEventUpdateMsg{},
		379: golibvirt.DomainEventCallbackMetadataChangeMsg{}, 438: golibvirt.DomainEventMemoryDeviceSizeChangeMsg{},
	})
})

// of gives shapes by examples of their values.
func of(remote map[uint32]any) shapes {
	out := shapes{}
	for number, v := range remote {
		out[procedure{programRemote, number}] = reflect.TypeOf(v)
	}
	return out
}

// refusal is libvirt's remote_error (virnetprotocol.x), as far as it has a shape
// of its own.
type refusal struct {
	Code, Domain     int32
	Message          golibvirt.OptString
	Level            int32
	Dom              golibvirt.OptDomain
	Str1, Str2, Str3 golibvirt.OptString
	Int1, Int2       int32
	Net              golibvirt.OptNetwork
}

// measure checks that a packet's payload is one value of type t and nothing else.
// t is nil for a reply without a value.
func measure(payload []byte, t reflect.Type) error {
	rest := payload
	if t != nil {
		var err error
		if rest, err = skip(payload, t); err != nil {
			return err
		}
	}
	if len(rest) > 0 {
		return fmt.Errorf("%d bytes too many", len(rest))
	}
	return nil
}

// skip gives what follows a value of type t in b, whose encoding is XDR (RFC
// 4506) as the library's decoder reads it: what is smaller than four bytes takes
// four, and an optional value is a list of one or none.
func skip(b []byte, t reflect.Type) ([]byte, error) {
	switch t {
	case reflect.TypeFor[golibvirt.TypedParam]():
		b, err := variable(b)
		if err != nil {
			return nil, err
		}
		return skipValue(b)
	}
	switch t.Kind() {
	case reflect.Bool, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Float32:
		return fixed(b, 4)
	case reflect.Int64, reflect.Uint64, reflect.Float64:
		return fixed(b, 8)
	case reflect.String:
		return variable(b)
	case reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return fixed(b, t.Len())
		}
		return several(b, t.Len(), t.Elem())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return variable(b)
		}
		n, rest, err := count(b)
		if err == nil && n > 1 && strings.HasPrefix(t.Name(), "Opt") {
			err = fmt.Errorf("an optional value is there %d times", n)
		}
		if err != nil {
			return nil, err
		}
		return several(rest, n, t.Elem())
	case reflect.Struct:
		var err error
		for i := range t.NumField() {
			if b, err = skip(b, t.Field(i).Type); err != nil {
				return nil, err
			}
		}
		return b, nil
	}
	return nil, fmt.Errorf("a %s has no encoding", t)
}

func several(b []byte, n int, t reflect.Type) (_ []byte, err error) {
	for range n {
		if b, err = skip(b, t); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// skipValue skips remote_typed_param_value: its type, virTypedParameterType, and
// the value.
func skipValue(b []byte) ([]byte, error) {
	if len(b) < 4 {
		return nil, errShort
	}
	switch kind, rest := binary.BigEndian.Uint32(b), b[4:]; kind {
	case 1, 2, 6: // int, unsigned, boolean
		return fixed(rest, 4)
	case 3, 4, 5: // long, unsigned long, double
		return fixed(rest, 8)
	case 7:
		return variable(rest)
	default:
		return nil, fmt.Errorf("a typed parameter of the unknown type %d", kind)
	}
}

var errShort = fmt.Errorf("it ends before its value does")

// count reads the number of a list's elements, each of which takes four bytes at
// least.
func count(b []byte) (int, []byte, error) {
	if len(b) < 4 {
		return 0, nil, errShort
	}
	n := binary.BigEndian.Uint32(b)
	if int64(n)*4 > int64(len(b)-4) {
		return 0, nil, fmt.Errorf("a list of %d in %d bytes", n, len(b)-4)
	}
	return int(n), b[4:], nil
}

func variable(b []byte) ([]byte, error) {
	if len(b) < 4 {
		return nil, errShort
	}
	n := binary.BigEndian.Uint32(b)
	if int64(n) > int64(len(b)-4) {
		return nil, fmt.Errorf("a string of %d bytes in %d", n, len(b)-4)
	}
	return fixed(b[4:], int(n))
}

// fixed skips n bytes and what fills them up to a multiple of four.
func fixed(b []byte, n int) ([]byte, error) {
	if n = (n + 3) &^ 3; n > len(b) {
		return nil, errShort
	}
	return b[n:], nil
}
