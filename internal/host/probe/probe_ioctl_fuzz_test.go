package probe

import (
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

func TestParseATASense(t *testing.T) {
	descriptor := []byte{0x72, 0x01, 0x00, 0x1d, 0, 0, 0, 0x0e, 0x09, 0x0c, 0, 0x00, 0, 0xff, 0, 0, 0, 0x4f, 0, 0xc2,
		0x40, 0x50, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	fixed := []byte{0x70, 0, 0x01, 0x00, 0x50, 0x40, 0x00, 0x0a, 0, 0, 0xf4, 0x2c, 0x00, 0x1d, 0, 0, 0, 0, 0, 0, 0, 0,
		0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	mediumError := []byte{0x70, 0, 0x03, 0, 0, 0, 0, 0x0a, 0, 0, 0, 0, 0x11, 0x04, 0, 0, 0, 0, 0, 0, 0, 0}
	for name, c := range map[string]struct {
		sense []byte
		want  ATARegisters
		ok    bool
	}{
		"descriptor": {descriptor, ATARegisters{Count: 0xff, LBAMid: 0x4f, LBAHigh: 0xc2, Status: 0x50}, true},
		"fixed":      {fixed, ATARegisters{LBAMid: 0xf4, LBAHigh: 0x2c, Status: 0x50}, true},
		"of another": {mediumError, ATARegisters{}, false},
		"none":       {make([]byte, 32), ATARegisters{}, false},
		"cut":        {descriptor[:20], ATARegisters{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := ParseATASense(c.sense)
			if diff := cmp.Diff(c.want, got); diff != "" || ok != c.ok {
				t.Errorf("ok %v (-want +got):\n%s", ok, diff)
			}
		})
	}
}

func FuzzATASense(f *testing.F) {
	f.Add([]byte{0x72, 0x01, 0x00, 0x1d, 0, 0, 0, 0x0e, 0x09, 0x0c, 0, 0x00, 0, 0xff, 0, 0, 0, 0x4f, 0, 0xc2, 0x40,
		0x50})
	f.Fuzz(func(t *testing.T, sense []byte) {
		if registers, ok := ParseATASense(sense); !ok && registers != (ATARegisters{}) {
			t.Fatal("no answer, but registers")
		}
	})
}

// FuzzMappedDevices: any answer of a kernel, even a broken one, is read within its bounds.
func FuzzMappedDevices(f *testing.F) {
	list := binary.NativeEndian.AppendUint64(nil, 0xfd00)
	list = binary.NativeEndian.AppendUint32(list, 24)
	list = append(list, "vg-pool\x00\x00\x00\x00\x00"...)
	list = binary.NativeEndian.AppendUint64(list, 0xfd01)
	list = append(binary.NativeEndian.AppendUint32(list, 0), "x\x00"...)
	if got := mappedDevices(list); len(got) != 2 || hosterr.Device(got[1]) != "253:1" {
		f.Fatal(got)
	}
	target := append(make([]byte, 24), "thin-pool\x00\x00\x00\x00\x00\x00\x001 2/3 -\x00junk"...)
	if kind, text := firstTarget(target); kind != "thin-pool" || text != "1 2/3 -" {
		f.Fatal(kind, text)
	}
	f.Add(list)
	f.Add(target)
	f.Fuzz(func(t *testing.T, data []byte) {
		if devices := mappedDevices(data); len(devices) > len(data)/12 {
			t.Fatal("more devices than there is room for")
		}
		if kind, text := firstTarget(data); len(kind) > 16 || len(text) > 2048 {
			t.Fatal(kind, text)
		}
	})
}
