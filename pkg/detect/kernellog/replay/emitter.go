package replay

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
)

// emitterOf returns the emitter that a program or unit of the given name is. Of systemd only PID 1 counts, which the
// caller must know.
func emitterOf(name string) (rules.Emitter, bool) {
	name = strings.TrimSuffix(name, ".service")
	name = strings.TrimPrefix(name, "snap.")
	if instance, _, ok := strings.Cut(name, "@"); ok && instance == "systemd-coredump" {
		name = instance
	}
	switch name {
	case "kubelet", "kubelet.daemon", "kubelet-wrapper", "hyperkube", "kubelite", "microk8s.daemon-kubelite",
		"microk8s.daemon-kubelet", "kube-kubelet", "kubenswrapper",
		"k3s", "k3s-agent", "k3s-server", "rke2", "rke2-server", "rke2-agent", "k0s", "k0sworker", "k0scontroller":
		return rules.Kubelet, true
	case "containerd", "docker", "dockerd", "docker-containerd", "dockerd-current", "crio", "cri-o", "cri-docker",
		"cri-dockerd", "microk8s.daemon-containerd":
		return rules.Runtime, true
	case "systemd", "init.scope":
		return rules.Systemd, true
	case "systemd-journald", "systemd-journal":
		return rules.Journald, true
	case "systemd-oomd":
		return rules.Oomd, true
	case "systemd-udevd", "(udev-worker)", "udevd":
		return rules.Udev, true
	case "chronyd", "chrony", "ntpd", "ntp", "ntpsec", "systemd-timesyncd":
		return rules.TimeDaemon, true
	case "NetworkManager", "systemd-networkd":
		return rules.NetworkManager, true
	case "systemd-resolved":
		return rules.Resolved, true
	case "smartd", "smartmontools":
		return rules.Smartd, true
	case "multipathd", "multipath":
		return rules.Multipathd, true
	case "mdadm", "mdmonitor":
		return rules.Mdadm, true
	case "mcelog", "rasdaemon":
		return rules.HardwareDaemon, true
	case "auditd":
		return rules.Auditd, true
	case "iscsid":
		return rules.ISCSI, true
	case "systemd-coredump":
		return rules.Coredump, true
	case "abrt-notification", "abrtd", "abrt-server", "abrt-dump-journal-oops", "abrt-dump-journal-core":
		return rules.Abrt, true
	}
	return rules.TheKernel, false
}

// taggedEmitter returns the emitter of a line "name[pid]: text" of a syslog, and systemd only where it is PID 1.
func taggedEmitter(name, pid string) (rules.Emitter, bool) {
	s, ok := emitterOf(name)
	if s == rules.Systemd && pid != "1" && pid != "" { // some syslog daemons write no number
		return rules.TheKernel, false
	}
	return s, ok
}

// spoken returns e as a line of a daemon.
func (e entry) spoken(s rules.Emitter, text []byte) entry {
	e.what, e.emitter = foreignLine, s
	e.said, _, _ = cutHeader(text)
	return e
}

// tagged recognises "name[pid]: text" at the beginning of what a program wrote into the kernel's log. Only root can.
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

// cutHeader removes what Kubernetes' klog and containerd's logrus put before each line, and returns whose it is:
//
//	E1106 14:02:11.123456    1234 kubelet.go:2183] "Container runtime network not ready" …
//	time="2024-07-04T16:24:03.119492729Z" level=error msg="…"
func cutHeader(text []byte) (rest []byte, s rules.Emitter, ok bool) {
	if rest, ok = cutKlog(text); ok {
		return rest, rules.Kubelet, true
	}
	if rest, ok = cutLogrus(text); ok {
		return rest, rules.Runtime, true
	}
	if rest, ok = flattenJSON(text); ok {
		return rest, rules.Kubelet, true
	}
	return text, rules.TheKernel, false
}

// flattenJSON writes a line of klog's JSON as klog writes its text: "message" err="…". Other fields are of no use here.
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
