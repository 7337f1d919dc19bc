//go:build native

package driver

import (
	"testing"

	"berth/driver/libvirt/native"
)

// The native library reaches a daemon's test driver by a URI that names the socket.
var nativeBinding = binding{native.Dial, func(socket string) string { return "test+unix:///default?socket=" + socket }, 2 * deadline, 0, 4}

func TestNative_EveryVerbUnderEveryFaultOfTheWire(t *testing.T) { nativeBinding.faultsOfTheWire(t) }

func TestNative_EveryVerbWhileTheDaemonStopsOrDies(t *testing.T) { nativeBinding.faultsOfTheDaemon(t) }

func TestNative_ScrambledAnswersHarmNobody(t *testing.T) { nativeBinding.scrambledAnswers(t) }

func TestNative_AThousandReconnectsLeakNothing(t *testing.T) { nativeBinding.reconnects(t, 1000) }
