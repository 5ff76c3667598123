package main

// printers are the kernel's functions and macros that print a line, with the text that they put before the format, or
// around {}. Those of only some drivers are in their family. Debugging output is left out: it is off in practice.
//
//	{pr}, {devfmt}  the file's own pr_fmt, dev_fmt
//	{mod}           the module's name
//	{dev}           driver and device as dev_printk prints them
//	{dm}            the name of the target of the device mapper
//
// {pci} and {eth} stay in the format: a device's address and an interface's name.
//
//	include/linux/{printk,dev_printk,netdevice,device-mapper,libata}.h, drivers/scsi/scsi_logging.c
var printers = withLevels(map[string]string{
	"pr_LEVEL":               "{pr}",
	"pr_LEVEL_ratelimited":   "{pr}",
	"pr_LEVEL_once":          "{pr}",
	"dev_LEVEL":              "{dev}: {devfmt}",
	"dev_LEVEL_ratelimited":  "{dev}: {devfmt}",
	"dev_LEVEL_once":         "{dev}: {devfmt}",
	"netdev_LEVEL":           "{mod} {pci} {eth}: ",
	"netdev_LEVEL_once":      "{mod} {pci} {eth}: ",
	"netif_LEVEL":            "{mod} {pci} {eth}: ",
	"pci_LEVEL":              "{mod} {pci}: {devfmt}",
	"pci_LEVEL_ratelimited":  "{mod} {pci}: {devfmt}",
	"aer_printk":             "{dev}: {devfmt}",
	"ctrl_LEVEL":             "{mod} {pci}: {devfmt}",
	"pci_printk":             "{mod} {pci}: {devfmt}",
	"ata_port_LEVEL":         "ata%u: ",
	"ata_link_LEVEL":         "ata%u.%02u: ",
	"ata_dev_LEVEL":          "ata%u.%02u: ",
	"xhci_LEVEL":             "xhci_hcd {pci}: ",
	"printk_LEVEL":           "{pr}",
	"sdev_LEVEL":             "sd 2:0:3:0: ",
	"DMLEVEL":                "device-mapper: {dm}: ",
	"DMLEVEL_LIMIT":          "device-mapper: {dm}: ",
	"net_LEVEL_ratelimited":  "{pr}",
	"printk":                 "",
	"printk_ratelimited":     "",
	"printk_once":            "",
	"printk_deferred":        "",
	"vprintk":                "",
	"dev_printk":             "{dev}: {devfmt}",
	"netdev_printk":          "{mod} {pci} {eth}: ",
	"sd_printk":              "sd 2:0:3:0: [sda] ",
	"sd_first_printk":        "sd 2:0:3:0: [sda] ",
	"scmd_printk":            "sd 2:0:3:0: [sda] tag#12 ",
	"sdev_printk":            "sd 2:0:3:0: ",
	"starget_printk":         "scsi target2:0:3: ",
	"shost_printk":           "scsi host2: ",
	"ata_port_printk":        "ata%u: ",
	"ata_link_printk":        "ata%u.%02u: ",
	"ata_dev_printk":         "ata%u.%02u: ",
	"panic":                  "Kernel panic - not syncing: ",
	"nmi_panic":              "Kernel panic - not syncing: ",
	"mce_panic":              "Kernel panic - not syncing: ",
	"edac_printk":            "EDAC %s: ",
	"edac_mc_printk":         "EDAC MC%d: ",
	"edac_mc_chipset_printk": "EDAC %s MC%d: ",
	"edac_device_printk":     "EDAC DEVICE%d: ",
	"edac_pci_printk":        "EDAC PCI%d: ",
})

// withLevels replaces names with LEVEL by one for each level.
func withLevels(byName map[string]string) map[string]string {
	all := map[string]string{}
	for name, prefix := range byName {
		for _, level := range levelsOf(name) {
			all[level] = prefix
		}
	}
	return all
}
