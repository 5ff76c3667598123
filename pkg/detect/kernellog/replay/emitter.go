package replay

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host/distro"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
)

// programs are the names of the programs and units of the emitters.
var programs = []struct {
	of    rules.Emitter
	names []string
}{
	{rules.Systemd, []string{"systemd", "init.scope"}},
	{rules.Journald, []string{"systemd-journald", "systemd-journal"}},
	{rules.Oomd, []string{"systemd-oomd"}},
	{rules.Udev, []string{"systemd-udevd", "(udev-worker)", "udevd"}},
	{rules.TimeDaemon, []string{"chronyd", "chrony", "ntpd", "ntp", "ntpsec", "systemd-timesyncd"}},
	{rules.NetworkManager, []string{"NetworkManager", "systemd-networkd"}},
	{rules.Resolved, []string{"systemd-resolved"}},
	{rules.Smartd, []string{"smartd", "smartmontools"}},
	{rules.Multipathd, []string{"multipathd", "multipath"}},
	{rules.Mdadm, []string{"mdadm", "mdmonitor"}},
	{rules.HardwareDaemon, []string{"mcelog", "rasdaemon"}},
	{rules.DBus, []string{"dbus-daemon", "dbus-broker", "dbus"}},
	{rules.Auditd, []string{"auditd"}},
	{rules.ISCSI, []string{"iscsid"}},
	{rules.Coredump, []string{"systemd-coredump"}},
	{rules.Abrt, []string{"abrt-notification", "abrtd", "abrt-server",
		"abrt-dump-journal-oops", "abrt-dump-journal-core"}},
}

// emitterOf returns the emitter for a program or unit of the given name. Of systemd only PID 1 counts; the caller must
// check that.
func emitterOf(name string) (rules.Emitter, bool) {
	name = strings.TrimSuffix(name, ".service")
	if instance, _, ok := strings.Cut(name, "@"); ok && instance == "systemd-coredump" {
		name = instance
	}
	for _, p := range programs {
		if slices.Contains(p.names, name) {
			return p.of, true
		}
	}
	return productEmitter(name)
}

// productEmitter returns the emitter of kubelet or a runtime under the name of a product: "k8s.kubelet",
// "snap.microk8s.daemon-kubelite", "kubelet.daemon", "rke2-server". The last part is the program; a helper of kubelet
// ("kubelet-helper") is another program, and so is a container of that name ("k8s_kubelet").
func productEmitter(name string) (rules.Emitter, bool) {
	if distro.IsKubeletUnit(name) || distro.IsKubeletUnit("snap."+name) || slices.Contains(distro.Launchers(), name) {
		return rules.Kubelet, true
	}
	if distro.IsRuntimeUnit(name) || distro.IsRuntimeUnit("snap."+name) {
		return rules.Runtime, true
	}
	last := name[strings.LastIndexAny(name, ".-")+1:]
	switch {
	case slices.Contains(distro.KubeletPrograms(), name), slices.Contains(distro.KubeletPrograms(), last):
		return rules.Kubelet, true
	case slices.Contains(distro.RuntimePrograms(), name), slices.Contains(distro.RuntimePrograms(), last):
		return rules.Runtime, true
	}
	return rules.TheKernel, false
}

// taggedEmitter returns the emitter of a line "name[pid]: text" of a syslog; systemd counts only as PID 1.
func taggedEmitter(name, pid string) (rules.Emitter, bool) {
	s, ok := emitterOf(name)
	if s == rules.Systemd && pid != "1" && pid != "" { // some syslog daemons write no number
		return rules.TheKernel, false
	}
	return s, ok
}

// spoken returns e as a line of a daemon, or of the component of a product whose line it contains.
func (e entry) spoken(s rules.Emitter, text []byte) entry {
	e.what, e.emitter = foreignLine, s
	e.message, _, _ = cutHeader(text)
	if s != rules.Kubelet && s != rules.Runtime {
		return e
	}
	if inner, of, ok := unwrapComponent(e.message); ok {
		e.emitter, e.message = of, inner
	}
	return e
}

// unknown returns e as a line of a program with an unknown name. Kubelet may run under any name: its lines contain the
// name of one of its own source files.
func (e entry) unknown(name string, text []byte) entry {
	e.what, e.program = foreignLine, name
	if _, s, ok := cutHeader(text); !ok || s != rules.Kubelet || !kubeletSource.Regexp().Match(text[:min(len(text), 120)]) {
		return e
	}
	return e.spoken(rules.Kubelet, text)
}

// kubeletSource is the position in kubelet's sources in the header of a line, in text or JSON. Other programs of
// Kubernetes write headers, too.
var kubeletSource = kernellog.WhenNeeded(`[ "/](?:kubelet(?:_\w+)?|kuberuntime_\w+|pod_workers|pod_container_deletor|eviction_manager|nestedpendingoperations|reconciler(?:_common)?|operation_generator|remote_(?:runtime|image)|container_manager_linux|image_gc_manager|volume_manager|pleg|setters|prober|csi_\w+|cpu_manager|status_manager|plugin_watcher|generic|evented)\.go:\d+[\]"]`)

// tagged recognises "name[pid]: text" at the start of a program's line in the kernel's log. Only root can write there.
func (e entry) tagged(text []byte) (entry, bool) {
	head, _, ok := bytes.Cut(text[:min(len(text), 80)], []byte("]: "))
	if !ok {
		return e, false
	}
	name, pid, ok := bytes.Cut(head, []byte("["))
	if !ok || !digits(pid) {
		return e, false
	}
	s, ok := taggedEmitter(string(name), string(pid))
	if !ok {
		return e, false
	}
	return e.spoken(s, text[len(head)+len("]: "):]), true
}

func digits(text []byte) bool {
	for _, c := range text {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(text) > 0
}

// cutHeader removes the header of Kubernetes' klog and containerd's logrus from a line, and returns the emitter:
//
//	E1106 14:02:11.123456    1234 kubelet.go:2183] "Container runtime network not ready" …
//	time="2024-07-04T16:24:03.119492729Z" level=error msg="…"
func cutHeader(text []byte) (rest []byte, s rules.Emitter, ok bool) {
	for _, h := range []struct {
		cut func([]byte) ([]byte, bool)
		of  rules.Emitter
	}{{cutKlog, rules.Kubelet}, {cutLogrus, rules.Runtime}, {flattenJSON, rules.Kubelet}, {flattenLogrus, rules.Runtime}} {
		if rest, ok = h.cut(text); ok {
			return rest, h.of, true
		}
	}
	return text, rules.TheKernel, false
}

// flattenJSON writes a line of klog's JSON as klog writes its text: "message" err="…". Other fields are not used here.
//
//	{"ts":1753121332053.9302,"caller":"kubelet/kubelet.go:2183","msg":"Skipping pod synchronization","err":"…"}
func flattenJSON(text []byte) ([]byte, bool) {
	if !bytes.HasPrefix(text, []byte(`{"ts":`)) {
		return nil, false
	}
	var line struct {
		Message string `json:"msg"`
		Err     string `json:"err"`
		Network string `json:"networkReady"`
	}
	if json.Unmarshal(text, &line) != nil || line.Message == "" {
		return nil, false
	}
	out := append(append([]byte(`"`), firstLine([]byte(line.Message))...), '"')
	for _, field := range []struct{ name, value string }{{"networkReady", line.Network}, {"err", line.Err}} {
		if field.value != "" {
			out = append(out, " "+field.name+"="+strconv.Quote(field.value)...)
		}
	}
	return out, true
}

func cutKlog(text []byte) (rest []byte, ok bool) {
	// only "kubelet.go:2073] "
	if at := bytes.Index(text[:min(len(text), 80)], []byte(".go:")); at > 0 && bytes.IndexByte(text[:at], ' ') < 0 {
		line, rest, ok := bytes.Cut(text[at+len(".go:"):], []byte("] "))
		return rest, ok && digits(line)
	}
	const header = len("E1106 14:02:11.")
	if len(text) < header+10 || bytes.IndexByte([]byte("IWEF"), text[0]) < 0 || !digits(text[1:5]) || text[5] != ' ' ||
		text[8] != ':' || text[11] != ':' || text[14] != '.' {
		return text, false
	}
	head, rest, ok := bytes.Cut(text[:min(len(text), 200)], []byte("] "))
	if !ok || bytes.IndexByte(head, ':') < 0 {
		return text, false
	}
	return text[len(head)+2:], len(rest) > 0
}

func cutLogrus(text []byte) (rest []byte, ok bool) {
	inner, ok := bytes.CutPrefix(text, []byte(`time="`))
	if !ok {
		return text, false
	}
	at := bytes.IndexByte(inner[:min(len(inner), 64)], '"')
	if at < 0 || !bytes.HasPrefix(inner[at:], []byte(`" level=`)) {
		return text, false
	}
	return inner[at+2:], true
}
