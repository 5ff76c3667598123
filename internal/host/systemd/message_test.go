package systemd

import (
	"bufio"
	"bytes"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"
)

func TestHasEmptyStruct(t *testing.T) {
	for _, tt := range []struct {
		message string
		want    bool
	}{
		{"\x03a()\x00", true},
		{"\x05a(())\x00", true},
		{"\x00\x00\x06ua()ss\x00", true},
		{"\x28a()" + strings.Repeat("s", 37) + "\x00", true}, // 40 is a type too: (
		{"()", false},
		{"\x04a(s)\x00", false},
		{"\x03\x00\x00\x00f()\x00", false},
		{"\x03\x00\x00\x00a()\x00", false},
		{"\x0d\x00\x00\x00sh -c f() { :; }\x00", false},
	} {
		if got := hasEmptyStruct([]byte(tt.message)); got != tt.want {
			t.Errorf("%q: %t", tt.message, got)
		}
	}
}

// FuzzBusMessage: godbus reads anything that systemd or the bus sends without a panic, which would end the agent.
func FuzzBusMessage(f *testing.F) {
	f.Add(serviceSignal("a", "exit-code"))
	f.Add(jobSignal("failed"))
	f.Add(signal("/org/freedesktop/DBus", busName, "NameAcquired"))
	for _, body := range [][]any{statuses([3]string{"a.service", "active", "running"}), variant([]string{"b.timer"})} {
		f.Add(encode(&dbus.Message{Type: dbus.TypeMethodReply, Body: body, Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldReplySerial: dbus.MakeVariant(uint32(1))}}))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		data, err := readMessage(bufio.NewReader(bytes.NewReader(data)))
		if err != nil {
			return
		}
		m, err := dbus.DecodeMessage(bytes.NewReader(data))
		if err != nil {
			return
		}
		if dropUnexpected(m); m.Type == dbus.TypeSignal {
			path, _ := m.Headers[dbus.FieldPath].Value().(dbus.ObjectPath)
			face, _ := m.Headers[dbus.FieldInterface].Value().(string)
			member, _ := m.Headers[dbus.FieldMember].Value().(string)
			(&systemdWatch{failing: map[string]bool{}}).matters(&dbus.Signal{Path: path, Name: face + "." + member,
				Body: m.Body})
		}
		for _, value := range m.Body {
			v, _ := value.(dbus.Variant)
			for _, property := range []string{"StateChangeTimestamp", "Transient", "TriggeredBy", "Result",
				"ExecMainCode", "NRestarts"} {
				var unit Unit
				_ = unit.set(property, v)
			}
		}
	})
}
