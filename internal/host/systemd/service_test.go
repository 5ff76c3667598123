package systemd

import (
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// kubeletService answers like systemd 252 for a service with a unit that is PartOf it, after bend has changed the
// answer.
func kubeletService(bend func(unit, service map[string]dbus.Variant)) func(*dbus.Message) []any {
	v := func(value any) dbus.Variant { return dbus.MakeVariant(value) }
	type process struct {
		Cgroup  string
		PID     uint32
		Command string
	}
	return func(call *dbus.Message) []any {
		unit := map[string]dbus.Variant{
			"LoadState": v("loaded"), "ActiveState": v("active"), "SubState": v("running"),
			"InvocationID": v([]byte{0xab, 0xcd}), "StateChangeTimestampMonotonic": v(uint64(1)),
			"Job": v(struct {
				ID   uint32
				Path dbus.ObjectPath
			}{0, "/"}),
			"RequiredBy": v([]string{"multi-user.target"}), "BoundBy": v([]string{}), "ConsistsOf": v([]string{"part.service"}),
			"RequisiteOf": v([]string{}), "FailureAction": v("none"), "StartLimitAction": v("none"), "SuccessAction": v("none"),
			"OnFailure": v([]string{}), "RefuseManualStart": v(false), "RefuseManualStop": v(false),
		}
		service := map[string]dbus.Variant{
			"KillMode": v("process"), "MainPID": v(uint32(7)), "ExecMainStartTimestampMonotonic": v(uint64(2)),
			"ExecStop": v([]command{}), "ExecStopPost": v([]command{}), "ExecStartPre": v([]command{}),
			"ExecStartPost": v([]command{}), "RuntimeDirectory": v([]string{}), "RuntimeDirectoryPreserve": v("no"),
		}
		bend(unit, service)
		switch member, first := call.Headers[dbus.FieldMember].Value().(string), call.Body[0]; {
		case member == "GetAll" && first == systemdName+".Unit":
			return []any{unit}
		case member == "GetAll":
			return []any{service}
		case member == "ListUnitsByNames":
			return statuses([3]string{"multi-user.target", "inactive", "dead"}, [3]string{"part.service", "active", "running"})
		case member == "GetUnitProcesses":
			return []any{[]process{{"/system.slice/kubelet.service", 7, "kubelet"}, {"/system.slice/kubelet.service", 8, "x"}}}
		}
		return failure("UnknownMethod")
	}
}

func TestService(t *testing.T) {
	ask := func(bend func(unit, service map[string]dbus.Variant)) (Service, error) {
		return fakeBus{answer: kubeletService(bend)}.listen(t).client().Service(t.Context(), "kubelet.service")
	}
	s, err := ask(func(_, _ map[string]dbus.Variant) {})
	want := Service{Name: "kubelet.service", Load: "loaded", Active: "active", Sub: "running", MainPID: 7,
		Invocation: "abcd", KillMode: "process", ManualAllowed: true, Dependents: []string{"part.service"}, Processes: []int{7, 8}}
	if diff := cmp.Diff(want, s, cmpopts.IgnoreFields(Service{}, "Age")); diff != "" || err != nil || s.Age <= time.Second {
		t.Errorf("%v, age %s, %s", err, s.Age, diff)
	}
	s, err = ask(func(unit, service map[string]dbus.Variant) {
		unit["Job"] = dbus.MakeVariant(struct {
			ID   uint32
			Path dbus.ObjectPath
		}{12, "/job/12"})
		service["ExecStopPost"] = dbus.MakeVariant([]command{{"/bin/sh"}})
	})
	if err != nil || !s.Job || !s.StopRuns {
		t.Errorf("%+v, %v", s, err)
	}
	// A missing property does not count as a permission.
	for _, name := range []string{"ActiveState", "Job", "RequiredBy", "ConsistsOf", "KillMode", "MainPID", "ExecStop",
		"ExecStartPre", "RequisiteOf", "RuntimeDirectory", "FailureAction", "StartLimitAction", "OnFailure",
		"RefuseManualStart", "RefuseManualStop"} {
		_, err := ask(func(unit, service map[string]dbus.Variant) { delete(unit, name); delete(service, name) })
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// command is the first member of an ExecStop command.
type command struct{ Path string }

// Each property by which a restart affects more than processes is reported, in systemd's words; harmless ones are not.
func TestWhatARestartChanges(t *testing.T) {
	v := func(value any) dbus.Variant { return dbus.MakeVariant(value) }
	for name, test := range map[string]struct {
		bend func(unit, service map[string]dbus.Variant)
		want []string
	}{
		"nothing": {func(_, _ map[string]dbus.Variant) {}, nil},
		"a runtime directory": {func(_, s map[string]dbus.Variant) { s["RuntimeDirectory"] = v([]string{"containerd", "x"}) },
			[]string{"RuntimeDirectory=containerd without", "RuntimeDirectory=x without"}},
		"one that is kept": {func(_, s map[string]dbus.Variant) {
			s["RuntimeDirectory"], s["RuntimeDirectoryPreserve"] = v([]string{"containerd"}), v("yes")
		}, nil},
		"one that a restart keeps": {func(_, s map[string]dbus.Variant) {
			s["RuntimeDirectory"], s["RuntimeDirectoryPreserve"] = v([]string{"containerd"}), v("restart")
		}, nil},
		"one of an old systemd": {func(_, s map[string]dbus.Variant) {
			s["RuntimeDirectory"] = v([]string{"containerd"})
			delete(s, "RuntimeDirectoryPreserve")
		}, []string{"RuntimeDirectory=containerd without"}},
		"FailureAction": {func(u, _ map[string]dbus.Variant) { u["FailureAction"] = v("reboot") }, []string{"FailureAction=reboot"}},
		"FailureAction of an old systemd": {func(u, s map[string]dbus.Variant) {
			delete(u, "FailureAction")
			s["FailureAction"] = v("reboot-force")
		}, []string{"FailureAction=reboot-force"}},
		"SuccessAction": {func(u, _ map[string]dbus.Variant) { u["SuccessAction"] = v("exit") }, []string{"SuccessAction=exit"}},
		"StartLimitAction": {func(u, _ map[string]dbus.Variant) { u["StartLimitAction"] = v("poweroff") },
			[]string{"StartLimitAction=poweroff"}},
		"JobTimeoutAction": {func(u, _ map[string]dbus.Variant) { u["JobTimeoutAction"] = v("reboot") },
			[]string{"JobTimeoutAction=reboot"}},
		"OnFailure": {func(u, _ map[string]dbus.Variant) { u["OnFailure"] = v([]string{"reboot.target"}) },
			[]string{"OnFailure=reboot.target"}},
		"OnSuccess": {func(u, _ map[string]dbus.Variant) { u["OnSuccess"] = v([]string{"a.service", "b.service"}) },
			[]string{"OnSuccess=a.service b.service"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := fakeBus{answer: kubeletService(test.bend)}.listen(t).client().Service(t.Context(), "kubelet.service")
			if err != nil || len(s.Changes) != len(test.want) {
				t.Fatalf("%q, %v", s.Changes, err)
			}
			for i, want := range test.want {
				if !strings.HasPrefix(s.Changes[i], want) {
					t.Errorf("%q, want %q", s.Changes, want)
				}
			}
		})
	}
	for _, relation := range []string{"RequisiteOf", "PropagatesStopTo"} {
		s, err := fakeBus{answer: kubeletService(func(unit, service map[string]dbus.Variant) {
			unit["RequiredBy"], unit["ConsistsOf"] = v([]string{}), v([]string{}) // the bus answers about any name
			unit[relation] = v([]string{"part.service"})
			service["ExecStartPre"] = v([]command{{"/sbin/modprobe"}})
		})}.listen(t).client().Service(t.Context(), "kubelet.service")
		if err != nil || len(s.Dependents) != 1 || s.Dependents[0] != "part.service" ||
			!strings.Contains(strings.Join(s.StartRuns, ""), "/sbin/modprobe (ExecStartPre=)") {
			t.Errorf("%s: %+v, %v", relation, s, err)
		}
	}
}

// systemd loads a unit that it does not have yet to answer this, and says when it has no file of it.
func TestLoadState(t *testing.T) {
	answer := func(value any) func(*dbus.Message) []any {
		return func(*dbus.Message) []any { return []any{dbus.MakeVariant(value)} }
	}
	state, err := fakeBus{answer: answer("not-found")}.listen(t).client().LoadState(t.Context(), "modprobe@zram.service")
	if err != nil || state != "not-found" {
		t.Error(state, err)
	}
	if _, err := (fakeBus{answer: answer(uint32(1))}).listen(t).client().LoadState(t.Context(), "x.service"); err == nil {
		t.Error("a number was taken for a state")
	}
}
