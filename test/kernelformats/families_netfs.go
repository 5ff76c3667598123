package main

// netfsFamilies are the clients of network filesystems and network disks, and cluster software that shares a disk.
func netfsFamilies() []family {
	drbd := map[string]string{}
	iscsi := map[string]string{"iscsi_cls_session_printk": " session1: ", "iscsi_cls_conn_printk": " connection1:0: ",
		"iscsi_session_printk": " session1: ", "iscsi_conn_printk": " connection1:0: "}
	cephNet := map[string]string{"osdmap_info": "libceph (fb30d64e-7a8c-46d3-bbd7-77a3b1f080d1 e857): "}
	cephFS := map[string]string{}
	for _, level := range levels {
		drbd["drbd_"+level] = "drbd r0/0 drbd0: "
		cephNet["pr_"+level], cephFS["pr_"+level] = "libceph: ", "ceph: "
		cephNet["pr_"+level+"_ratelimited"] = "libceph: "
		cephFS["pr_"+level+"_client"] = "ceph: [fb30d64e-7a8c-46d3-bbd7-77a3b1f080d1 4201]: "
	}
	return []family{{
		name: "nfs",
		files: []string{"net/sunrpc/clnt.c", "net/sunrpc/xprtsock.c", "fs/nfs/nfs4state.c", "fs/nfs/nfs4proc.c",
			"fs/nfs/inode.c", "fs/nfs/callback.c", "fs/lockd/clntproc.c", "fs/lockd/mon.c", "fs/lockd/svc.c"},
		words:  givesUp + `|not respond|server .* ok|unhandled error|lost .* locks|recovery failed|cannot monitor|returned error|fileid|authenticat|in use|broken|bad sequence|reclaim`,
		except: `debug|bug`,
	}, {
		name:  "smb",
		files: []string{"fs/smb/client/*.c", "fs/cifs/*.c"},
		words: `not responded|stuck for|timeouts exceeded|wait timed out|sending data on socket|cifs_mount failed|connecting to socket|sesssetup|connect to ipc|creating socket|reconnect tcon|share .*deleted|signature verification returned|dialect not supported|bad_network_name|possible reconnect`,
		printers: map[string]string{"cifs_dbg": "CIFS: VFS: ", "cifs_server_dbg": `CIFS: VFS: \\files1 `,
			"pr_warn_once": "CIFS: ", "cifs_tcon_dbg": `CIFS: VFS: \\files1\share `},
	}, {
		name: "ceph-net",
		files: []string{"net/ceph/mon_client.c", "net/ceph/osd_client.c", "net/ceph/osdmap.c",
			"net/ceph/ceph_common.c",
			"net/ceph/auth.c"},
		words:    `session (lost|established|blo?a?cklisted)|hung|came back|bad fsid|osd%d (down|up)|authentication failed|is full|reached quota|osd%d timeout|caps (stale|still|went|renewed)|mds%d rejected|mds%d reconnect (denied|failed|success)|recovery completed|closed our session|laggy`,
		printers: cephNet,
	}, {
		name:     "ceph-fs",
		files:    []string{"fs/ceph/mds_client.c", "fs/ceph/super.c"},
		words:    `session (lost|established|blo?a?cklisted)|hung|came back|bad fsid|osd%d (down|up)|authentication failed|is full|reached quota|osd%d timeout|caps (stale|still|went|renewed)|mds%d rejected|mds%d reconnect (denied|failed|success)|recovery completed|closed our session|laggy`,
		printers: cephFS,
	}, {
		name:     "rbd",
		files:    []string{"drivers/block/rbd.c"},
		words:    `watch error|result %d|failed to (acquire|lock header|reregister)`,
		printers: map[string]string{"rbd_warn": "rbd: rbd0: "},
	}, {
		name: "iscsi",
		files: []string{"drivers/scsi/libiscsi.c", "drivers/scsi/scsi_transport_iscsi.c",
			"drivers/scsi/scsi_transport_srp.c"},
		words:    `detected conn error|recovery timed out|ping timeout|send nopout|rejected|tmo expired|reconnect (attempt|succeeded)|connection closed|giving up on stale|logout request|dreq|connection %d/%d`,
		except:   `path rec|rej |opcode|task`,
		printers: iscsi,
	}, {
		name: "nvme-fabrics",
		files: []string{"drivers/nvme/host/tcp.c", "drivers/nvme/host/rdma.c", "drivers/nvme/host/fc.c",
			"drivers/nvme/host/fabrics.c"},
		words: `reconnect|error recovery|removing controller|connect (socket|queue|command|rejected|for)|connectivity|dev_loss_tmo|receive failed|digest error|failed to send request|authentication failed|connect complete|connection establishment failed|handshake`,
		dev:   "nvme nvme0",
	}, {
		name:  "nbd",
		files: []string{"drivers/block/nbd.c"},
		words: `timed out|dead connection|stuck request|socket|control failed|data failed|returned error|disconnect|socks array`,
		dev:   "block nbd0",
	}, {
		name: "drbd",
		files: []string{"drivers/block/drbd/drbd_req.c", "drivers/block/drbd/drbd_receiver.c",
			"drivers/block/drbd/drbd_worker.c", "drivers/block/drbd/drbd_actlog.c"},
		words:    `split-brain|pingack|disk-timeout|within %ums|neither local|local %s io error|authentication of peer|digest integrity|disk broke down|timed out|unrelated data`,
		printers: drbd,
	}, {
		name: "cluster-filesystems",
		files: []string{"fs/gfs2/util.c", "fs/gfs2/recovery.c", "fs/dlm/lowcomms.c", "fs/ocfs2/cluster/tcp.c",
			"fs/ocfs2/cluster/quorum.c", "fs/ocfs2/stack_o2cb.c", "net/9p/trans_virtio.c", "net/9p/trans_fd.c",
			"net/9p/client.c", "fs/fuse/virtio_fs.c"},
		words: `withdraw|fatal: |jid=%u: |connected to|connection (from|to)|connect (to|%d)|idle for|socket error|got eof|fencing this system|evicted|no channels|connecting socket|not found|req\(\) failed|bogus`,
		printers: map[string]string{"log_print": "dlm: ", "fs_err": "gfs2: fsid=c1:gfs0.0: ",
			"fs_warn": "gfs2: fsid=c1:gfs0.0: ",
			"fs_info": "gfs2: fsid=c1:gfs0.0: ", "gfs2_lm": "gfs2: fsid=c1:gfs0.0: "},
	}, {
		name:  "bridge-bond",
		files: []string{"net/bridge/br_fdb.c", "drivers/net/bonding/bond_main.c", "drivers/net/bonding/bond_3ad.c"},
		words: `own address|link status|interface is now|active interface|illegal loopback|suitable aggregator|changed to 0|802\.3ad response|new active one`,
		printers: map[string]string{"netdev_info": "bond0: ", "br_warn": "br0: ",
			"slave_info": "bond0: (slave eth1): ", "slave_warn": "bond0: (slave eth1): ",
			"slave_err": "bond0: (slave eth1): "},
	}}
}
