package csi

import (
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/socket"
)

func TestListenerWithoutOwner(t *testing.T) {
	for name, test := range map[string]struct {
		listener       socket.Listener
		unknown, inUse int
	}{
		"inside":                     {socket.Listener{Path: "/k/plugins/x.sock", Inside: true, PID: 5}, 1, 0},
		"inside, no owner":           {socket.Listener{Path: "/k/plugins/x.sock", Inside: true}, 1, 0},
		"inside, it said who it is":  {socket.Listener{Path: "/k/plugins/known.sock", Inside: true, PID: 5}, 0, 0},
		"like a driver's, no owner":  {socket.Listener{Path: "/csi/csi.sock"}, 1, 0},
		"like a registrar's":         {socket.Listener{Path: "/registration/a-reg.sock"}, 1, 0},
		"like a driver's, elsewhere": {socket.Listener{Path: "/csi/csi.sock", PID: 5}, 0, 1},
		"named after kubelet":        {socket.Listener{Path: "/var/lib/kubelet2/x", PID: 5}, 0, 1},
		"another":                    {socket.Listener{Path: "/run/dbus/system_bus_socket"}, 0, 0},
	} {
		seen := driverObservation{}
		s := socketSearch{observation: &seen, known: map[string]bool{"/k/plugins/known.sock": true}}
		s.listener(test.listener)
		if len(seen.Unknown) != test.unknown || len(seen.InUse) != test.inUse {
			t.Errorf("%s: %+v", name, seen)
		}
	}
}
