// The problems of now: the answer to the first question of somebody who opens the page.

const almostFull = 0.9;

// lookAtDenials returns what to say of a zone that has denied, or would have denied, a tenth of its requests in the last minute.
function lookAtDenials(zone, minute) {
	const all = minute.allowed + minute.denied + minute.undecided;
	return [['denied', 'denies', ''], ['shadowDenied', 'would deny', ' (shadow mode)']].filter(([kind]) => minute[kind] >= 10 && minute[kind] >= 0.1 * all)
		.map(([kind, verb, why]) => ({ text: `Zone ${zone} ${verb} ${Math.round((100 * minute[kind]) / all)} % of its requests${why}.`, zone, [kind]: minute[kind] }));
}

// withoutRedis says what happens to requests while Redis fails, by on_store_error.
const withoutRedis = { local: 'Local budgets decide.', allow: 'Requests pass without a limit.', deny: 'Requests get status 503.' };

// problems returns {isFailure, text, zone or section}. Failures come first, and then zones by their denials, and by those in shadow mode.
function problems() {
	const failures = [], looks = [];
	const fails = (text, section) => failures.push({ isFailure: true, text, section });
	for (const i of instances) if (i.state === 'down') fails(`${i.name} does not answer.`, 'instances');
	const redises = new Map(); // {names of instances, what happens to requests} by what fails
	for (const i of living()) {
		for (const r of (i.status && i.status.redis) || []) {
			if (r.state === 'up') continue;
			const what = `Redis ${r.address} ${r.state === 'partly_down' ? 'is partly failing' : 'is failing'}`;
			const known = redises.get(what) || { names: [], meanwhile: new Set() };
			redises.set(what, known);
			known.names.push(i.name);
			for (const z of [...i.zones.values()].flat()) if (z.failing_nodes) known.meanwhile.add(withoutRedis[z.on_store_error]);
		}
		for (const [name, memory] of i.memories()) {
			if (memory.keys >= almostFull * memory.max_keys) fails(`The ${name} of ${i.name} is ${memory.keys >= memory.max_keys ? 'full' : 'almost full'}.`, 'instances');
		}
	}
	for (const [what, { names, meanwhile }] of redises) fails([instances.length > 1 ? `${what} at ${names.join(', ')}.` : `${what}.`, ...meanwhile].join(' '), 'instances');
	for (const [name, card] of cards) {
		const minute = card.chart.last(60);
		if (minute.undecided > 0) failures.push({ isFailure: true, text: `The store of zone ${name} could not decide requests.`, zone: name });
		looks.push(...lookAtDenials(name, minute));
		const list = variants(name);
		if (list.length > 0 && !isEqualEverywhere(list)) looks.push({ text: `Zone ${name} has different settings on another instance or site.`, zone: name });
	}
	const by = (kind) => (a, b) => (b[kind] || 0) - (a[kind] || 0);
	return [...failures, ...looks.sort((a, b) => by('denied')(a, b) || by('shadowDenied')(a, b))];
}

const shownProblems = 6;

function showNow() {
	const list = problems();
	const failures = list.filter((p) => p.isFailure).length;
	document.title = failures ? `(${failures}) Rate limits` : 'Rate limits';
	$('pulse').classList.toggle('is-down', failures > 0);
	const isKnown = instances.some((i) => i.state !== 'connecting');
	$('now').hidden = !isKnown;
	if (!isKnown) return;
	$('now').classList.toggle('is-fine', list.length === 0);
	$('now-fine').hidden = list.length > 0;
	setText($('now-fine-text'), cards.size === 0 ? 'All clear: no failures.' : `All clear: no failures, and no zone denies${$('legend-would').hidden ? '' : ' or would deny'} 10 % or more of its requests.`);
	updateRows($('now-list'), list.slice(0, shownProblems), (p) => p.text.replace(/ \d+ %/, ''),
		(p) => element('li', { class: p.isFailure ? 'failing' : 'look' }, element('span', { class: 'sign', 'aria-hidden': 'true' }, p.isFailure ? '▲' : '◆'),
			element('button', { class: 'link', onclick: () => (p.zone ? choose(p.zone, true) : $(p.section).scrollIntoView()) })),
		(row, p) => setText(row.lastChild, p.text));
	$('now-more').hidden = list.length <= shownProblems;
	setText($('now-more'), `and ${list.length - shownProblems} more`);
}
