package rules

import "github.com/nodeagent/nodeagent/pkg/finding"

// unclassifiedDaemonRules recognise what no other rule does, as those of the kernel: what a daemon itself calls an error,
// of the node and not of a pod. Healthy nodes log errors while kubelet starts, and wherever a pod, an image or a
// container is gone before somebody looked: these are left out.
func unclassifiedDaemonRules() []Rule {
	words := []string{"ailed", "ailure", "rror", "imed out", "imeout", "DeadlineExceeded", "nable to", "annot", "ould not", "orrupt",
		"refused", "unreachable", "ot respond", "no such device", "No such device", "nconsistent", "eadlock"}
	const most = 8
	return []Rule{{
		ID: "unclassified-kubelet-error", Reason: "UnclassifiedDaemonError", Domain: Kubernetes, Severity: finding.Info,
		Emitters: []Emitter{Kubelet},
		Summary:  "kubelet logged an error about the node, and no rule knows what it means",
		Advice: "`journalctl -u kubelet -p err` around it; err= has the cause: the part of kubelet that the line begins with " +
			"does not work until that is mended.",
		Literals: words, Words: words,
		Patterns: []string{quoted + `(?P<what>\S.{3,80})`},
		Unless: []string{"pod", "Pod", "ontainer", "mage", "mirror", "not found", "NotFound", "already exists", "nimplemented",
			"registered", "may not have", "yet", "gnoring", "ermitted", "memory cache", "invalid capacity", "permission", "plugins_registry",
			"probe", "Probe", "the object has been", "context canceled", "checkpoint", "volume", "secret", "configmap", "Unhandled", "node lister",
			"http: TLS", "EOF", "broken pipe", "reset by peer", "watch", "summary stats", "oom score", "swap", "kernel"},
		Kind: NodeKind, LevelKnown: true, AtMost: most, Expiry: hour,
	}, {
		ID: "unclassified-host-daemon-error", Reason: "UnclassifiedDaemonError", Domain: System, Severity: finding.Info,
		Emitters: []Emitter{Multipathd, Mdadm, ISCSI, HardwareDaemon, Auditd},
		Summary:  "a daemon of disks, memory or audit logged that something failed, and no rule knows what it means",
		Advice: "`journalctl -u multipathd -u iscsid -u mdmonitor -u auditd --since -10min` around it; `multipath -ll`, `lsblk` and " +
			"`dmesg` for the device in the line.",
		Literals: words, Words: words,
		Patterns: []string{`^(?:(?P<subject>[\w.:/-]{2,64}): )?\S`},
		Unless: append(harmless(), "ption", "blacklist", "onfig", "deprecated", "gnor", "already", "disabled", "not exist", "oesn't exist",
			"uevent trigger", "no usable paths", "not a valid", "udev uid", "pidfile", "Signal", "keyword", "only decoding", "errors:"),
		Kind: "device", AtMost: most, Expiry: hour,
	}}
}
