package repair

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Only the hanging container of a DaemonSet named in the configuration is ended, and only if it has no clients.
func TestDaemonSetContainer(t *testing.T) {
	both := corev1.MountPropagationBidirectional
	hostPath := func(p *corev1.Pod, dir string) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: dir}}}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: dir, MountPropagation: &both}}
	}
	mounts := func(line string) func(n *containerNode, p *corev1.Pod) {
		return func(n *containerNode, p *corev1.Pod) {
			p.Spec.HostNetwork, p.Status.PodIP, p.Status.HostIP = true, "10.0.0.7", "10.0.0.7"
			n.write("/proc/1/mountinfo", rootMount+line+"\n")
		}
	}
	for name, test := range map[string]struct {
		change func(n *containerNode, p *corev1.Pod)
		want   string
	}{
		"not named": {func(n *containerNode, _ *corev1.Pod) { n.tools.Settings.DaemonSets = nil }, "does not name DaemonSet"},
		"of another DaemonSet": {func(_ *containerNode, p *corev1.Pod) { p.OwnerReferences[0].Name = "other" },
			"does not belong to DaemonSet"},
		"of a ReplicaSet": {func(_ *containerNode, p *corev1.Pod) { p.OwnerReferences[0].Kind = "ReplicaSet" },
			"does not belong to DaemonSet"},
		"of another kind of DaemonSet": {func(_ *containerNode, p *corev1.Pod) {
			p.OwnerReferences[0].APIVersion = "apps.kruise.io/v1alpha1"
		}, "does not belong to DaemonSet"},
		"of nobody": {func(_ *containerNode, p *corev1.Pod) { p.OwnerReferences = nil }, "does not belong to DaemonSet"},
		"in another namespace": {func(_ *containerNode, p *corev1.Pod) { p.Namespace = "default" },
			"does not belong to DaemonSet"},
		"restarted since": {func(n *containerNode, p *corev1.Pod) {
			n.status(p, 50).ContainerID = "containerd://" + strings.Repeat("e", 64)
		}, "is not one that kubelet runs"},
		"no container": {func(n *containerNode, _ *corev1.Pod) { n.finding.Facts = nil }, "names no container"},
		"it mounts for others": {func(_ *containerNode, p *corev1.Pod) { hostPath(p, "/var/lib/kubelet/pods") },
			"mounts volumes for other pods"},
		"it mounts anywhere": {func(_ *containerNode, p *corev1.Pod) { hostPath(p, "/") }, "mounts volumes for other pods"},
		"it mounts BPF":      {func(_ *containerNode, p *corev1.Pod) { hostPath(p, "/sys/fs/bpf") }, ""},
		"NFS from it":        {mounts("2 1 0:50 / /var/lib/kubelet/x rw - nfs4 10.0.0.7:/x rw,addr=10.0.0.7"), "is mounted from 10.0.0.7"},
		"NFS from loopback":  {mounts("2 1 0:50 / /x rw - nfs 127.0.0.1:/x rw,addr=127.0.0.1"), "is mounted from 127.0.0.1"},
		"Ceph from it":       {mounts("2 1 0:50 / /x rw - ceph 10.0.0.7:6789:/ rw,name=admin"), "is mounted from 10.0.0.7"},
		"SMB from it":        {mounts("2 1 0:50 / /x rw - cifs //10.0.0.7/x rw"), "is mounted from 10.0.0.7"},
		"NFS from elsewhere": {mounts("2 1 0:50 / /x rw - nfs4 10.0.0.9:/x rw,addr=10.0.0.9"), ""},
		"no table of mounts": {func(n *containerNode, _ *corev1.Pod) { n.write("/proc/1/mountinfo", "malformed") }, "mountinfo"},
		"NVMe from it": {func(n *containerNode, p *corev1.Pod) {
			p.Status.PodIP = "10.0.0.7"
			n.write("/sys/class/nvme/nvme0/address", "0000:00:1f.0\n")
			n.write("/sys/class/nvme/nvme1/address", "traddr=10.0.0.7,trsvcid=14420,src_addr=10.0.0.1\n")
		}, "NVMe controller nvme1 is connected from 10.0.0.7"},
		"iSCSI from it": {func(n *containerNode, p *corev1.Pod) {
			p.Status.PodIP = "10.0.0.7"
			n.write("/sys/class/iscsi_connection/connection1:0/persistent_address", "10.0.0.7\n")
		}, "iSCSI connection connection1:0 is connected from 10.0.0.7"},
		"it serves NVMe": {func(n *containerNode, _ *corev1.Pod) { n.tcp(50, "00000000:1144 00000000:0000 0A 7") },
			"listens on port 4420 (NVMe over TCP)"},
		"the kernel serves iSCSI in its network": {func(n *containerNode, _ *corev1.Pod) {
			n.tcp(50, "00000000:0CBC 00000000:0000 0A 0")
		}, "listens on port 3260 (iSCSI)"},
		// 10.0.0.1:700 is the client of 10.96.0.5:2049 here, which is 10.1.0.7:12049 there.
		"NFS from its Service": {func(n *containerNode, p *corev1.Pod) {
			p.Status.PodIP = "10.1.0.7"
			n.write("/proc/1/mountinfo", rootMount+"2 1 0:50 / /x rw - nfs4 10.96.0.5:/x rw,addr=10.96.0.5\n")
			n.tcp(1, "0100000A:9C40 0500600A:0801 01 5")
			n.tcp(50, "00000000:2F11 00000000:0000 0A 7", "0700010A:2F11 0100000A:9C40 01 8")
		}, "/x is mounted from 10.96.0.5, and"},
		"NFS of another node from its Service": {func(n *containerNode, _ *corev1.Pod) {
			n.tcp(50, "00000000:2F11 00000000:0000 0A 7", "0700010A:2F11 0900000A:02BC 01 8")
		}, "10.0.0.9:700 is connected to port 12049"},
		"NFS from another's Service": {func(n *containerNode, _ *corev1.Pod) {
			n.write("/proc/1/mountinfo", rootMount+"2 1 0:50 / /x rw - nfs4 10.96.0.5:/x rw,addr=10.96.0.5\n")
			n.tcp(1, "0100000A:9C40 0500600A:0801 01 5")
			n.tcp(50, "00000000:2382 00000000:0000 0A 7", "0700010A:2382 0100000A:9C42 01 8", "0700010A:9C40 0900000A:01BB 01 9")
		}, ""},
		"another in the host's network serves NFS": {func(n *containerNode, p *corev1.Pod) {
			p.Spec.HostNetwork = true
			n.tcp(50, "00000000:0801 00000000:0000 0A 0", "00000000:1144 00000000:0000 0A 77")
		}, ""},
		"it serves NVMe in the host's network": {func(n *containerNode, p *corev1.Pod) {
			p.Spec.HostNetwork = true
			n.tcp(50, "00000000:1144 00000000:0000 0A 77")
			n.opens(50, 9, "socket:[77]")
		}, "listens on port 4420"},
		"it may have the kernel serve NFS in the host's network": {func(n *containerNode, p *corev1.Pod) {
			p.Spec.HostNetwork = true
			yes := true
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
			n.tcp(50, "00000000:0801 00000000:0000 0A 0")
		}, "listens on port 2049 (NFS)"},
		"the kernel's socket has an inode that no process holds": {func(n *containerNode, p *corev1.Pod) {
			p.Spec.HostNetwork = true
			yes := true
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
			n.tcp(50, "00000000:0801 00000000:0000 0A 20511")
		}, "listens on port 2049 (NFS)"},
		"a daemon of the host serves NFS": {func(n *containerNode, p *corev1.Pod) {
			p.Spec.HostNetwork = true
			yes := true
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
			n.tcp(50, "00000000:0801 00000000:0000 0A 20511")
			n.process(60, "ganesha", "0::/system.slice/nfs-ganesha.service\n")
			n.opens(60, 5, "socket:[20511]")
		}, ""},
		"NVMe over RDMA from it": {func(n *containerNode, p *corev1.Pod) {
			p.Status.PodIP = "10.0.0.7"
			n.write("/sys/class/nvme/nvme1/address", "traddr=10.0.0.7,trsvcid=4420,host_traddr=10.0.0.1\n")
		}, "NVMe controller nvme1 is connected from 10.0.0.7"},
		"iSCSI that a portal has redirected to it": {func(n *containerNode, p *corev1.Pod) {
			p.Status.PodIP = "10.0.0.7"
			n.write("/sys/class/iscsi_connection/connection1:0/persistent_address", "10.0.0.9\n")
			n.write("/sys/class/iscsi_connection/connection1:0/address", "10.0.0.7\n")
		}, "iSCSI connection connection1:0 is connected from 10.0.0.7"},
		"RBD from it": {func(n *containerNode, p *corev1.Pod) {
			p.Status.PodIP = "10.0.0.7"
			n.write("/sys/bus/rbd/devices/0/config_info", "10.0.0.9:6789,10.0.0.7:6789 name=admin,secret=x rbd image -\n")
		}, "RBD device 0 is connected from 10.0.0.7"},
		"RBD from elsewhere": {func(n *containerNode, _ *corev1.Pod) {
			n.write("/sys/bus/rbd/devices/0/config_info", "10.0.0.9:6789 name=admin,secret=x rbd image -\n")
		}, ""},
		"Ceph from its second monitor": {mounts("2 1 0:50 / /x rw - ceph 10.0.0.9:6789,10.0.0.7:6789:/ rw,name=admin"),
			"is mounted from 10.0.0.7"},
		"Ceph by mon_addr": {mounts("2 1 0:50 / /x rw - ceph admin@fsid.fs=/ rw,mon_addr=10.0.0.9:6789/10.0.0.7:3300"),
			"is mounted from 10.0.0.7"},
		"NFS over RDMA from it": {mounts("2 1 0:50 / /x rw - nfs4 10.0.0.7:/x rw,proto=rdma,port=20049,addr=10.0.0.7"),
			"is mounted from 10.0.0.7"},
		"it serves by RDMA": {func(n *containerNode, _ *corev1.Pod) { n.opens(50, 9, "/dev/infiniband/uverbs0") },
			"has /dev/infiniband/uverbs0 open"},
		"it connects by RDMA": {func(n *containerNode, _ *corev1.Pod) { n.opens(50, 9, "/dev/infiniband/rdma_cm") },
			"has /dev/infiniband/rdma_cm open"},
		"it serves NFS by UDP": {func(n *containerNode, _ *corev1.Pod) { n.udp(50, "00000000:0801", "07", 9) },
			"listens on UDP port 2049 (NFS)"},
		"NFS by UDP from an unknown server": {func(n *containerNode, _ *corev1.Pod) {
			n.write("/proc/1/mountinfo", rootMount+"2 1 0:50 / /x rw - nfs 10.96.0.5:/x rw,vers=3,proto=udp,addr=10.96.0.5\n")
			n.udp(50, "00000000:2F11", "07", 9)
		}, "/x is mounted by UDP from 10.96.0.5, and"},
		"NFS by UDP, and its socket has a peer": {func(n *containerNode, _ *corev1.Pod) {
			n.write("/proc/1/mountinfo", rootMount+"2 1 0:50 / /x rw - nfs 10.96.0.5:/x rw,vers=3,proto=udp,addr=10.96.0.5\n")
			n.udp(50, "0700010A:2F11", "01", 9)
		}, ""},
		"NFS by UDP, and it listens on loopback only": {func(n *containerNode, _ *corev1.Pod) {
			n.write("/proc/1/mountinfo", rootMount+"2 1 0:50 / /x rw - nfs 10.96.0.5:/x rw,vers=3,proto=udp,addr=10.96.0.5\n")
			n.udp(50, "0100007F:2F11", "07", 9)
		}, ""},
		"it listens for DNS by UDP":         {func(n *containerNode, _ *corev1.Pod) { n.udp(50, "00000000:0035", "07", 9) }, ""},
		"its sockets of UDP cannot be read": {func(n *containerNode, _ *corev1.Pod) { n.udp(50, "x", "07", 9) }, "UDP sockets of"},
		"its connections cannot be read":    {func(n *containerNode, _ *corev1.Pod) { n.tcp(50, "x x 01 5") }, "connections of"},
		"everything as it was":              {func(*containerNode, *corev1.Pod) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newContainerNode(t)
			n.aboutDaemonSet()
			p, _ := n.containerAt(50)
			test.change(n, p)
			n.expect(50, test.want)
		})
	}
}
