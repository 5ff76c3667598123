package repair

import (
	"context"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func restartDaemonSetContainer() Action {
	return Action{
		Name:    "restart-daemonset-container",
		Summary: "restart the container of a DaemonSet that hangs (checks.daemonset-hang.daemonSets)",
		Answers: []Answer{{"daemonset-hang", []string{"DaemonSetPodNotAnswering", "DaemonSetPodHungInKernel"}}},
		Of:      func(s Settings, f finding.Finding) bool { return slices.Contains(s.DaemonSets, f.Subject.Name) },
		// The check needs 5 minutes to find that the new container hangs too.
		Disrupts: true, Once: true, Every: time.Hour, Settle: 6 * time.Minute,
		Needs: slices.Concat([]string{
			"the configuration names the DaemonSet",
			"the owner reference of the container's pod names it, and the container is the one that the check saw hang",
			"it mounts no volumes for other pods: none of its volumes at, above or below kubelet's directory has mount propagation Bidirectional",
			"no network filesystem is mounted on the node, and no NVMe or iSCSI connected, from an address of its pod",
			"it serves no storage to others, here or elsewhere: it listens on no port of NFS, SMB, Ceph, iSCSI, NVMe and the " +
				"like, none of its clients uses a port below 1024, as kernels do, and none of its connections belongs to " +
				"storage of this node, even if this was mounted through the address of a Service",
		}, containerNeeds()),
		Does: []string{"end the container through CRI, with the pod's grace period, but at most one minute: kubelet starts it again",
			"once for each fault, and at most once an hour on a node",
			"if a process survives SIGKILL, report it and stop (RepairDidNotHelp); the finding asks for a reboot"},
		Never: []string{"deletes a pod", "ends a container of a static pod, of kubelet, of the runtime or of the agent",
			"ends the same container twice"},
		Examine: examineDaemonSet,
	}
}

func examineDaemonSet(ctx context.Context, t Tools, f finding.Finding) (Job, error) {
	name := f.Subject.Name
	if !slices.Contains(t.Settings.DaemonSets, name) {
		return Job{}, refuse("the configuration does not name DaemonSet %s", name)
	}
	pods, err := livePods(ctx, t.Host)
	if err != nil {
		return Job{}, err
	}
	hanging := f.Facts["containerID"]
	if !host.IsContainerID(hanging) {
		return Job{}, refuse("the finding names no container")
	}
	all := members(pods)
	i := slices.IndexFunc(all, func(m member) bool { return m.id() == hanging })
	if i < 0 {
		return Job{}, refuse("container %.12s, which hangs, is not one that kubelet runs", hanging)
	}
	m := all[i]
	owner := metav1.GetControllerOfNoCopy(m.pod)
	if owner == nil || owner.Kind != "DaemonSet" || !strings.HasPrefix(owner.APIVersion, "apps/") ||
		m.pod.Namespace+"/"+owner.Name != name {
		return Job{}, refuse("pod %s/%s does not belong to DaemonSet %s", m.pod.Namespace, m.pod.Name, name)
	}
	r, err := m.mayEnd(ctx, t)
	if err != nil {
		return Job{}, err
	}
	if err := nothingMountedBy(t.Host, m); err != nil {
		return Job{}, err
	}
	if err := r.servesNobody(t.Host); err != nil {
		return Job{}, err
	}
	return r.restart(t, "DaemonSet "+name).after(func() error { // a client may have mounted from it meanwhile
		return proc.UnlessGone(r.servesNobody(t.Host)) // an ended process has no clients
	}), nil
}

// nothingMountedBy refuses if the container may provide mounts to living pods.
func nothingMountedBy(h *host.Host, m member) error {
	root := path.Clean(h.Paths.KubeletRoot)
	for _, mounted := range m.spec.VolumeMounts {
		if p := mounted.MountPropagation; p == nil || *p != corev1.MountPropagationBidirectional {
			continue
		}
		for _, v := range m.pod.Spec.Volumes {
			if v.Name != mounted.Name || v.HostPath == nil {
				continue
			}
			if dir := path.Clean(v.HostPath.Path); mount.Below(dir, root) || mount.Below(root, dir) {
				return refuse("%s mounts volumes for other pods (%s is propagated)", m, dir)
			}
		}
	}
	return nil
}

// serversOf returns the servers of a network filesystem: the options addr= of NFS, CIFS and the like and mon_addr= of Ceph, or the
// part before the path in the source, as with Ceph before Linux 5.17 (10.0.0.1:6789,…:/).
func serversOf(m mount.Mount) []netip.Addr {
	network := slices.ContainsFunc([]string{"nfs", "cifs", "smb", "ceph", "9p", "afs", "lustre"},
		func(prefix string) bool { return strings.HasPrefix(m.FSType, prefix) })
	if !network {
		return nil
	}
	var all []netip.Addr
	for _, option := range m.SuperOptions {
		if value, ok := strings.CutPrefix(option, "addr="); ok {
			all = append(all, addresses(value, ",")...)
		}
		if value, ok := strings.CutPrefix(option, "mon_addr="); ok {
			all = append(all, addresses(value, "/")...)
		}
	}
	if len(all) > 0 {
		return all
	}
	server, _, _ := strings.Cut(strings.TrimLeft(m.Source, "/"), "/")
	return addresses(strings.TrimSuffix(server, ":"), ",")
}

// addresses returns the addresses in a list, each with or without a port.
func addresses(list, separator string) (all []netip.Addr) {
	for server := range strings.SplitSeq(list, separator) {
		if port, err := netip.ParseAddrPort(server); err == nil {
			all = append(all, port.Addr().Unmap())
		} else if addr, err := netip.ParseAddr(strings.Trim(server, "[]")); err == nil {
			all = append(all, addr.Unmap())
		}
	}
	return all
}

// isOf reports whether an address is a pod's. A loopback address belongs to every pod in the host's network.
func isOf(pod *corev1.Pod, addr netip.Addr) bool {
	if addr.IsLoopback() {
		return pod.Spec.HostNetwork
	}
	addresses := []string{pod.Status.PodIP, pod.Status.HostIP}
	if !pod.Spec.HostNetwork {
		addresses = addresses[:1]
	}
	for _, ip := range pod.Status.PodIPs {
		addresses = append(addresses, ip.IP)
	}
	return slices.Contains(addresses, addr.String())
}
