// Package stuck keeps calls into the kernel that do not come back from holding up the rest.
//
// A call on a file whose server is gone waits in the kernel until the server answers, by
// default for ever (nfs(5), option hard). No context and no signal ends it, and its thread
// is lost meanwhile. The same holds for a disk whose paths are gone (multipath,
// queue_if_no_path), for FUSE, and for /proc/PID/cmdline of a process that waits for such a
// file with its memory map locked. So these calls are made in goroutines of their own:
//
//   - the caller waits for Calls.Limit at most, and then has fault.Unavailable, which names
//     the file system, and says since when it does not answer;
//   - while one call waits for longer than that, no other is begun there: callers are
//     refused at once. When it comes back the file system is believed again; nothing polls;
//   - at most width calls are under way on one file system, hence at most so many threads
//     are lost to it. A call that may take long is begun after the file system has answered, and is
//     not among them.
//
// A call that its caller has given up may still be carried out when the server is back. So
// only calls that change nothing are made this way. Whoever writes asks Answers first and
// then waits as long as it takes: what was begun is then over when it returns.
//
// On which file system a path lies is found in /proc/self/mountinfo, link by link. No file
// system is touched before it is known to be one that answers.
package stuck
