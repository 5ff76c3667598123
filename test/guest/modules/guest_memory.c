// SPDX-License-Identifier: GPL-2.0
/*
 * Two memory controllers with error correction: the first counts by module, the second by rank, as AMD's do. Errors are made by
 * a write to the parameters "corrected" and "uncorrected": controller, module (-1: it is not known which) and number of errors.
 *
 * https://docs.kernel.org/driver-api/edac.html
 */
#include <linux/edac.h>
#include <linux/err.h>
#include <linux/module.h>
#include <linux/platform_device.h>

/* Of drivers/edac/edac_mc.h, which no package of headers holds. */
struct mem_ctl_info *edac_mc_alloc(unsigned int mc_num, unsigned int n_layers, struct edac_mc_layer *layers, unsigned int sz_pvt);
int edac_mc_add_mc_with_groups(struct mem_ctl_info *mci, const struct attribute_group **groups);
struct mem_ctl_info *edac_mc_del_mc(struct device *dev);
void edac_mc_free(struct mem_ctl_info *mci);
void edac_mc_handle_error(const enum hw_event_mc_err_type type, struct mem_ctl_info *mci, const u16 error_count,
			  const unsigned long page_frame_number, const unsigned long offset_in_page, const unsigned long syndrome,
			  const int top_layer, const int mid_layer, const int low_layer, const char *msg, const char *other_detail);

#define CONTROLLERS 2
#define MODULES 2

static struct platform_device *devices[CONTROLLERS];
static struct mem_ctl_info *controllers[CONTROLLERS];

static int report(const char *text, enum hw_event_mc_err_type type)
{
	int controller, module;
	unsigned short count;

	if (sscanf(text, "%d %d %hu", &controller, &module, &count) != 3 || controller < 0 || controller >= CONTROLLERS || module >= MODULES)
		return -EINVAL;
	edac_mc_handle_error(type, controllers[controller], count, 0x12345, 0x678, 0x9a, module, module < 0 ? -1 : 0, -1, "memory read error", "");
	return 0;
}

static int set_corrected(const char *text, const struct kernel_param *kp)
{
	return report(text, HW_EVENT_ERR_CORRECTED);
}

static int set_uncorrected(const char *text, const struct kernel_param *kp)
{
	return report(text, HW_EVENT_ERR_UNCORRECTED);
}

static const struct kernel_param_ops corrected_ops = { .set = set_corrected };
static const struct kernel_param_ops uncorrected_ops = { .set = set_uncorrected };
module_param_cb(corrected, &corrected_ops, NULL, 0200);
module_param_cb(uncorrected, &uncorrected_ops, NULL, 0200);

static int add(int number)
{
	struct edac_mc_layer layers[] = {
		{ .type = number ? EDAC_MC_LAYER_CHIP_SELECT : EDAC_MC_LAYER_CHANNEL, .size = MODULES, .is_virt_csrow = number },
		{ .type = number ? EDAC_MC_LAYER_CHANNEL : EDAC_MC_LAYER_SLOT, .size = 1, .is_virt_csrow = !number },
	};
	struct mem_ctl_info *mci;
	struct dimm_info *dimm;
	int err;

	devices[number] = platform_device_register_simple("guest_memory", number, NULL, 0);
	if (IS_ERR(devices[number]))
		return PTR_ERR(devices[number]);
	mci = edac_mc_alloc(number, ARRAY_SIZE(layers), layers, 0);
	if (!mci)
		return -ENOMEM;
	mci->pdev = &devices[number]->dev;
	mci->mtype_cap = MEM_FLAG_DDR4;
	mci->edac_ctl_cap = mci->edac_cap = EDAC_FLAG_SECDED;
	mci->mod_name = mci->ctl_name = "guest_memory";
	mci->dev_name = dev_name(mci->pdev);
	mci_for_each_dimm(mci, dimm) {
		dimm->nr_pages = 1 << 18;
		dimm->grain = 64;
		dimm->mtype = MEM_DDR4;
		dimm->edac_mode = EDAC_SECDED;
		if (!number) /* else the kernel's own label stays */
			snprintf(dimm->label, sizeof(dimm->label), "CPU_SrcID#0_MC#0_Chan#%d_DIMM#0", dimm->location[0]);
	}
	err = edac_mc_add_mc_with_groups(mci, NULL);
	if (err)
		edac_mc_free(mci);
	else
		controllers[number] = mci;
	return err;
}

static void remove_all(void)
{
	int i;

	for (i = 0; i < CONTROLLERS; i++) {
		if (controllers[i])
			edac_mc_free(edac_mc_del_mc(&devices[i]->dev));
		if (!IS_ERR_OR_NULL(devices[i]))
			platform_device_unregister(devices[i]);
	}
}

static int __init guest_memory_init(void)
{
	int i, err = 0;

	for (i = 0; i < CONTROLLERS && !err; i++)
		err = add(i);
	if (err)
		remove_all();
	return err;
}

module_init(guest_memory_init);
module_exit(remove_all);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Memory whose errors are made by a write, for tests");
