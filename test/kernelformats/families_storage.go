package main

// storageFamilies are disks, their controllers and the layers stacked on them.
func storageFamilies() []family {
	mpt := map[string]string{}
	for _, level := range levels {
		mpt["ioc_"+level] = "mpt3sas_cm0: "
	}
	return []family{{
		name: "nvme",
		files: []string{"drivers/nvme/host/pci.c", "drivers/nvme/host/core.c", "drivers/nvme/host/multipath.c",
			"drivers/nvme/host/nvme.h"},
		words: givesUp + `|fail|error|abort|remov|no (usable|available) path|critical|degraded|lost|not ready|faulty`,
		dev:   "nvme nvme0",
	}, {
		name:  "megaraid",
		files: []string{"drivers/scsi/megaraid/megaraid_sas_base.c", "drivers/scsi/megaraid/megaraid_sas_fusion.c"},
		words: givesUp + `|fault|ocr|kill`,
	}, {
		name:     "mpt3sas",
		files:    []string{"drivers/scsi/mpt3sas/mpt3sas_base.c", "drivers/scsi/mpt3sas/mpt3sas_scsih.c"},
		words:    givesUp + `|fault|coredump|non-operational|halted|overrun|diag reset|task abort`,
		printers: mpt,
	}, {
		name:  "smart-array",
		files: []string{"drivers/scsi/smartpqi/smartpqi_init.c", "drivers/scsi/hpsa.c", "drivers/scsi/aacraid/*.c"},
		words: givesUp + `|heartbeat|offline|resetting|abort`,
	}, {
		name: "fibre-channel",
		files: []string{"drivers/scsi/lpfc/lpfc_init.c", "drivers/scsi/lpfc/lpfc_sli.c",
			"drivers/scsi/lpfc/lpfc_els.c",
			"drivers/scsi/lpfc/lpfc_hbadisc.c", "drivers/scsi/lpfc/lpfc_scsi.c", "drivers/scsi/qla2xxx/qla_isr.c",
			"drivers/scsi/qla2xxx/qla_os.c", "drivers/scsi/qla2xxx/qla_init.c", "drivers/scsi/scsi_transport_fc.c"},
		words: `adapter (failed|offline|heartbeat)|port offline|board.*(fail|off|over)|devloss|dev_loss|loop down|link down|` +
			`isp (system|error)|isp_error|unrecoverable|\bhang|firmware (hang|crash|halted|dump)|pci[e ].*(disconnect|error)|parity|over ?temp|` +
			`(adapter|controller|board|hba).*(fail|reset|dead|gone)|reset (isp|issued|fail)|abort command|mailbox.*timed? ?out|heartbeat`,
		printers: map[string]string{"lpfc_printf_log": "lpfc {pci}: %d:", "lpfc_printf_vlog": "lpfc {pci}: %d:(%d):",
			"ql_log": "qla2xxx [{pci}]-%04x:%ld: "},
	}, {
		name: "scsi",
		files: []string{"drivers/scsi/scsi_error.c", "drivers/scsi/scsi_lib.c", "drivers/scsi/scsi_logging.c",
			"drivers/scsi/scsi_ioctl.c", "drivers/scsi/scsi_scan.c", "drivers/scsi/sd.c",
			"drivers/scsi/virtio_scsi.c",
			"drivers/scsi/storvsc_drv.c", "drivers/scsi/vmw_pvscsi.c"},
		words: givesUp + `|offline|reject|abort|reset|result:|sense key|fail|error`,
	}, {
		name: "ata", driver: "ahci",
		files: []string{"drivers/ata/libata-*.c", "drivers/ata/libahci.c", "drivers/ata/ahci.c"},
		words: givesUp + `|fail|disable|exception|error|reset`,
	}, {
		name: "block",
		files: []string{"block/*.c", "fs/buffer.c", "fs/iomap/buffered-io.c", "drivers/block/virtio_blk.c",
			"drivers/block/xen-blkfront.c"},
		words:    givesUp + `|i/o error|error, dev|lost (page|async)|beyond end|write error|writeback error|read error`,
		printers: map[string]string{"buffer_io_error": ""},
	}, {
		name: "mmc",
		files: []string{"drivers/mmc/core/block.c", "drivers/mmc/core/bus.c",
			"drivers/mmc/core/core.c", "drivers/mmc/core/mmc.c", "drivers/mmc/core/mmc_ops.c",
			"drivers/mmc/core/sd.c",
			"drivers/mmc/host/sdhci.c", "drivers/mmc/host/cqhci*.c"},
		words: givesUp + `|removed|recovery failed|error -?%d|adma error|being busy|wrong state|failed to halt|cache flush`,
	}, {
		name: "usb",
		files: []string{"drivers/usb/core/hub.c", "drivers/usb/host/xhci.c", "drivers/usb/host/xhci-ring.c",
			"drivers/usb/host/xhci-hub.c", "drivers/usb/storage/uas.c", "drivers/usb/storage/scsiglue.c",
			"drivers/usb/storage/transport.c"},
		words: givesUp + `|disconnect|over-?current|cannot (enable|reset)|unable to enumerate|not accepting|died|halt|abort|not respond|error|uas-tag`,
		dev:   "usb 1-3",
	}, {
		name: "usb-host", dev: "xhci_hcd {pci}",
		files: []string{"drivers/usb/core/hcd.c"},
		words: `died|error`,
	}, {
		name: "md",
		files: []string{"drivers/md/md.c", "drivers/md/raid*.c", "drivers/md/md-linear.c",
			"drivers/md/md-multipath.c"},
		words: givesUp + `|fail|error|cannot|kick|not enough|corrected|degraded|too (few|many)`,
	}, {
		name: "device-mapper",
		files: []string{"drivers/md/dm-mpath.c", "drivers/md/dm-thin.c", "drivers/md/dm-thin-metadata.c",
			"drivers/md/dm-integrity.c", "drivers/md/dm-verity-target.c", "drivers/md/dm-crypt.c",
			"drivers/md/dm-snap.c",
			"drivers/md/dm-raid1.c", "drivers/md/dm-raid.c", "drivers/md/dm-cache-target.c",
			"drivers/md/dm-cache-metadata.c",
			"drivers/md/persistent-data/*.c", "drivers/md/dm-bufio.c", "drivers/md/dm-log.c"},
		words:  `fail|unable|couldn|corrupt|error|invalidat|reinstat|out of|no free|low water|switching|abort|timeout`,
		except: `parsing|argument|parameter|invalid|option|table|register|workqueue|pool to hold|alloc|initiali[sz]e|cursor|snapshot %s|message|creation of|deletion of|trans.*id from|transaction id|userspace`,
	}, {
		name:  "bcache",
		files: []string{"drivers/md/bcache/*.[ch]"},
		words: givesUp + `|i/?o error|too many|bad|corrupt|disabl|stop`,
	}}
}
