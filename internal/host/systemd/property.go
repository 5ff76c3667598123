package systemd

import (
	"fmt"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// maxTriggers bounds the triggers stored for one unit.
const maxTriggers = 10

// set stores one property.
func (u *Unit) set(property string, v dbus.Variant) (err error) {
	switch property {
	case "StateChangeTimestamp": // microseconds since 1970; 0: never
		var since uint64
		if since, err = valueOf[uint64](v); since > 0 && since < 1<<62 {
			u.Since = time.UnixMicro(int64(since)).UTC()
		}
	case "Transient":
		u.Transient, err = valueOf[bool](v)
	case "TriggeredBy":
		var names []string
		names, err = valueOf[[]string](v)
		for _, name := range names[:min(len(names), maxTriggers)] {
			u.TriggeredBy = append(u.TriggeredBy, text(name))
		}
	case "Result":
		u.Result, err = valueOf[string](v)
		u.Result = text(u.Result)
	case "ExecMainCode":
		u.Code, err = valueOf[int32](v)
	case "ExecMainStatus":
		u.Status, err = valueOf[int32](v)
	case "NRestarts":
		u.Restarts, err = valueOf[uint32](v)
	}
	return err
}

func valueOf[T any](v dbus.Variant) (T, error) {
	value, ok := v.Value().(T)
	if !ok {
		return value, fmt.Errorf("of type %q, want %q", hosterr.Clip(v.Signature().String()), dbus.SignatureOf(value))
	}
	return value, nil
}

// text bounds a stored text.
func text(s string) string { return hosterr.Clip(strings.ToValidUTF8(s, "?")) }
