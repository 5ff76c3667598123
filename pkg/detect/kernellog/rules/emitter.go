package rules

// Emitter is a daemon of the host whose log lines are trusted, or a family of daemons with the same lines.
type Emitter string

// The emitters.
const (
	TheKernel Emitter = ""

	Kubelet        Emitter = "kubelet" // and products that contain it: k3s, RKE2, MicroK8s
	Runtime        Emitter = "runtime" // containerd, dockerd, CRI-O
	Systemd        Emitter = "systemd" // PID 1 only, not the manager of a user
	Journald       Emitter = "journald"
	Oomd           Emitter = "oomd"
	Udev           Emitter = "udev"
	TimeDaemon     Emitter = "time"    // chronyd, ntpd, systemd-timesyncd
	NetworkManager Emitter = "network" // NetworkManager, systemd-networkd
	Resolved       Emitter = "resolved"
	Smartd         Emitter = "smartd"
	Multipathd     Emitter = "multipathd"
	Mdadm          Emitter = "mdadm"
	HardwareDaemon Emitter = "hardware" // mcelog, rasdaemon
	DBus           Emitter = "dbus"     // dbus-daemon, dbus-broker
	Auditd         Emitter = "auditd"
	ISCSI          Emitter = "iscsid"
	Coredump       Emitter = "coredump"
	Abrt           Emitter = "abrt" // Fedora's and Red Hat's bug reporting tool
)

// hostDaemons are the emitters with short logs of their own; kubelet, the runtime, systemd and journald are not among them.
var hostDaemons = []Emitter{Oomd, Udev, TimeDaemon, NetworkManager, Resolved, Smartd, Multipathd, Mdadm, HardwareDaemon, DBus, Auditd,
	ISCSI, Coredump, Abrt}
