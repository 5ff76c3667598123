// SPDX-License-Identifier: GPL-2.0
/*
 * Faults of the kernel itself. The name of one, and for those that last a number of seconds, is written to the parameter
 * "make"; it happens in a kernel thread of its own, guest-NAME, which is all that dies of it.
 */
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/kthread.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

struct request {
	void (*make)(int seconds);
	int seconds;
};

static void spin(int seconds)
{
	unsigned long end = jiffies + seconds * HZ;

	while (time_before(jiffies, end))
		cpu_relax();
}

static void soft_lockup(int seconds)
{
	preempt_disable();
	spin(seconds);
	preempt_enable();
}

static void irqs_off(int seconds)
{
	unsigned long flags;

	local_irq_save(flags);
	spin(seconds); /* the other processor moves jiffies */
	local_irq_restore(flags);
}

static void rcu_task(int seconds)
{
	unsigned long end = jiffies + seconds * HZ;

	rcu_read_lock();
	while (time_before(jiffies, end))
		cond_resched();
	rcu_read_unlock();
}

static void hung(int seconds)
{
	unsigned long end = jiffies + seconds * HZ;

	while (time_before(jiffies, end)) {
		set_current_state(TASK_UNINTERRUPTIBLE);
		schedule_timeout(end - jiffies);
	}
}

static void realtime(int seconds)
{
	sched_set_fifo(current);
	spin(seconds);
	sched_set_normal(current, 0);
}

static void atomic(int seconds)
{
	preempt_disable();
	msleep(10);
	preempt_enable();
}

static void warn(int seconds)
{
	WARN(1, "guest: a test\n");
}

static void null(int seconds)
{
	WRITE_ONCE(*(volatile int *)8, 1);
}

static void page(int seconds)
{
	WRITE_ONCE(*(volatile int *)0xffffc8ffdead0000, 1); /* in a hole */
}

static void protection(int seconds)
{
	WRITE_ONCE(*(volatile int *)0xdead000000000000, 1);
}

static void bug(int seconds)
{
	BUG();
}

static void divide(int seconds)
{
	asm volatile("xor %%edx, %%edx; xor %%eax, %%eax; xor %%ecx, %%ecx; div %%ecx" ::: "eax", "ecx", "edx");
}

static void list(int seconds)
{
	static LIST_HEAD(head);
	static struct list_head entry, other;

	list_add(&entry, &head);
	head.next = &other;
	list_add(&other, &head);
}

static void bad_page(int seconds)
{
	struct page *p = alloc_pages(GFP_KERNEL | __GFP_COMP, 4);

	if (p) {
		__SetPageLocked(p);
		__free_pages(p, 4); /* the kernel keeps it out of use */
	}
}

static void usercopy(int seconds)
{
	char *text = kmalloc(64, GFP_KERNEL);
	size_t most = 100;

	OPTIMIZER_HIDE_VAR(most);
	OPTIMIZER_HIDE_VAR(text);
	if (copy_to_user((void __user *)PAGE_SIZE, text, most))
		kfree(text);
}

static void use_after_free(int seconds)
{
	struct kmem_cache *cache = kmem_cache_create("guest", 64, 0, SLAB_POISON | SLAB_RED_ZONE | SLAB_CONSISTENCY_CHECKS, NULL);
	char *object;

	if (!cache)
		return;
	object = kmem_cache_alloc(cache, GFP_KERNEL);
	if (object) {
		kmem_cache_free(cache, object);
		OPTIMIZER_HIDE_VAR(object);
		object[10] = 'x';
		kmem_cache_free(cache, kmem_cache_alloc(cache, GFP_KERNEL));
	}
	kmem_cache_destroy(cache);
}

/* What the kernel cannot give at once. It has it back right afterwards. */
static void no_page(int seconds)
{
	struct list_head *first = NULL, *block;

	while ((block = (void *)__get_free_pages(GFP_NOWAIT, MAX_ORDER - 1))) {
		block->next = first;
		first = block;
	}
	while ((block = first)) {
		first = block->next;
		free_pages((unsigned long)block, MAX_ORDER - 1);
	}
}

static const struct {
	const char *name;
	void (*make)(int seconds);
} faults[] = {
	{ "soft-lockup", soft_lockup }, { "irqs-off", irqs_off }, { "rcu-task", rcu_task }, { "hung", hung }, { "realtime", realtime },
	{ "atomic", atomic }, { "warn", warn }, { "null", null }, { "page", page }, { "protection", protection }, { "bug", bug },
	{ "divide", divide }, { "list", list }, { "bad-page", bad_page }, { "usercopy", usercopy }, { "no-page", no_page },
	{ "used-freed", use_after_free },
};

static int run(void *data)
{
	struct request r = *(struct request *)data;

	kfree(data);
	r.make(r.seconds);
	return 0;
}

static int set_make(const char *text, const struct kernel_param *kp)
{
	struct task_struct *task;
	struct request *r;
	char name[16];
	int i, seconds = 0;

	if (sscanf(text, "%15s %d", name, &seconds) < 1 || seconds < 0 || seconds > 120)
		return -EINVAL;
	for (i = 0; i < ARRAY_SIZE(faults); i++) {
		if (strcmp(name, faults[i].name))
			continue;
		r = kmalloc(sizeof(*r), GFP_KERNEL);
		if (!r)
			return -ENOMEM;
		*r = (struct request){ faults[i].make, seconds };
		task = kthread_create(run, r, "guest-%s", name);
		if (IS_ERR(task)) {
			kfree(r);
			return PTR_ERR(task);
		}
		kthread_bind(task, num_online_cpus() - 1); /* not the one that keeps the time */
		wake_up_process(task);
		return 0;
	}
	return -EINVAL;
}

static const struct kernel_param_ops make_ops = { .set = set_make };
module_param_cb(make, &make_ops, NULL, 0200);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Faults of the kernel, for tests");
