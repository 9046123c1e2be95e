// The box that explains a request.

const verdicts = {
	allowed: ['✓', 'Allowed', 'The request would pass now.'],
	delayed: ['◷', 'Delayed', 'The request would wait, and then pass.'],
	denied: ['✕', 'Denied', 'The request would be denied now.'],
	unlimited: ['✓', 'Not limited', 'No zone limits the request.'],
};

const applies = {
	no_match: 'doesn’t match the request', exempt: 'the request is exempt', unlimited: 'no limit for this key',
	ban_only: 'only the ban of the zone applies, because it covers the whole handler',
};

const reasons = { ban: 'by a ban', hold: 'because a response asks to wait', concurrency: 'by the requests in flight', body: 'because the body can’t be read', store: 'because the store fails' };

// decision says which zone decides.
function decision(d) {
	const what = reasons[d.reason] || 'by the limit';
	const wait = d.retry_after_seconds === null || d.retry_after_seconds === undefined ? "Waiting won't help."
		: d.retry_after_seconds === 0 ? '' : `A request passes again in ${formatSpan(d.retry_after_seconds)}, at ${formatInstant(Date.now() + d.retry_after_seconds * 1000)}.`;
	return element('p', {}, 'Zone ', element('strong', {}, d.zone), ` decides, ${what}`, ...(d.limit && d.reason === 'limit' ? [' ', element('code', {}, d.limit)] : []), `. ${wait}`);
}

function explainedZone(z) {
	const isIn = z.applies === 'yes' || z.applies === 'unlimited';
	const verdict = isIn && z.verdict ? state({ allowed: 'up', delayed: 'partly_down', denied: 'down', banned: 'down' }[z.verdict] || 'connecting', z.verdict + (z.shadow ? ' (in shadow mode, so it passes)' : '')) : null;
	return element('article', { class: isIn ? 'explained' : 'explained is-out' },
		element('div', { class: 'card-head' }, element('h4', {}, z.zone), verdict),
		z.applies === 'yes' ? null : element('p', { class: 'quiet' }, applies[z.applies] || z.applies),
		z.key ? element('p', {}, 'Key ', shownKey(z.key), z.alternative ? ` (from ${inCaddyfile(z.alternative)})` : '', z.cost !== 1 ? ` · costs ${integer.format(z.cost)}` : '') : null,
		z.plan ? element('p', {}, 'Plan ', element('code', {}, z.plan)) : null,
		z.override ? element('p', {}, element('span', { class: 'badge' }, 'override'), ' ', overrideText(z.override)) : null,
		z.store === 'local' ? element('p', { class: 'failure' }, 'Redis is failing. These are the local budgets of the instance.') : null,
		z.limits || z.concurrency || z.ban ? budgetList(z) : null,
		isIn && z.key && changeable(z.key) ? changesOf(z) : null);
}

// changesOf offers the changes of the key of an explained zone.
function changesOf(z) {
	const list = variants(z.zone);
	const kinds = [...(list.some((v) => v.runtime_overrides) ? ['override'] : []), 'reset', ...(z.ban && z.ban.banned ? ['unban'] : [])];
	return element('div', { class: 'buttons' }, ...kinds.map((kind) => element('button', {
		type: 'button', class: 'small', 'data-change': kind, 'aria-label': `${changes[kind].button} key ${plainKey(z.key)} of zone ${z.zone}`,
		onclick: () => change(kind, z.zone, { key: z.key.key || '' }) }, changes[kind].button)));
}

// recentlyOf says how often each key of a request was denied recently, by explanations of several instances. Two handlers can
// have a key in common.
function recentlyOf(explanations) {
	const id = (z) => JSON.stringify([z.zone, sameKey(z.key)]);
	const zones = explanations.flatMap((x) => [...new Map((x.handlers || []).flatMap((h) => h.zones || []).filter((z) => z.denials).map((z) => [id(z), z])).values()]);
	return [...Map.groupBy(zones, id).values()].flatMap((list) => recentlyLines(list.flatMap((z) => z.denials), ', key ', shownKey(list[0].key), ` of zone ${list[0].zone}`));
}

// explanation shows the explanation of an instance. The others add their denials.
function explanation(x, others) {
	const [sign, word, text] = verdicts[x.verdict] || ['?', x.verdict, ''];
	const parts = recentlyOf([x, ...others]);
	parts.push(element('div', { class: `verdict ${x.verdict}` }, element('span', { class: 'icon', 'aria-hidden': 'true' }, sign),
		element('div', {}, parts.length > 0 ? 'Now: ' : '', element('strong', {}, word), ' ', element('span', {}, text), x.decides ? decision(x.decides) : null)));
	for (const note of x.notes || []) parts.push(element('p', { class: 'note' }, note));
	for (const handler of x.handlers || []) {
		parts.push(element('section', { class: 'handler' }, element('h3', {}, `Server ${handler.server}`), handler.reached ? null : element('p', { class: 'quiet' }, 'The request doesn’t get here, because an earlier handler denies it.'),
			...(handler.zones || []).map(explainedZone)));
	}
	return parts;
}

// readHeaders reads lines such as "X-Api-Key: a". A line without a colon is an error.
function readHeaders(text) {
	const headers = {};
	for (const line of text.split('\n').filter((l) => l.trim() !== '')) {
		const colon = line.indexOf(':');
		if (colon < 1) throw new Error(`The header line “${line}” has no colon. Write for example X-Api-Key: customer-7`);
		const name = line.slice(0, colon).trim();
		(headers[name] ||= []).push(line.slice(colon + 1).trim());
	}
	return headers;
}

// explained is the request of the shown explanation. The explanation says how old it is, because budgets change.
let explained = null;
const oldAfter = 10 * second;

function ageExplanation(why) {
	if (explained && why) explained.why = why;
	const age = explained ? elapsed() - explained.at : 0;
	$('explanation-age').hidden = !explained || (age < oldAfter && !explained.why);
	if ($('explanation-age').hidden) return;
	const old = age < oldAfter ? '' : `This explanation is ${formatSpan(Math.floor(age / oldAfter) * 10)} old. `;
	setText($('explanation-age-text'), `${old}${explained.why ? `${explained.why} since then.` : ''}`.trim());
}

// explain shows the explanation of a request by an instance. An instance that can't explain it has no denials to add.
async function explain(request, asked) {
	const others = living().filter((i) => i !== asked).map((i) => i.call('POST', 'explain', request).catch(() => ({})));
	$('explanation').replaceChildren(...explanation(await asked.call('POST', 'explain', request), await Promise.all(others)));
	explained = { request, asked, at: elapsed() };
	ageExplanation();
}

async function whileBusy(ask) {
	const out = $('explanation');
	out.setAttribute('aria-busy', 'true');
	try {
		await ask();
	} catch (e) {
		explained = null;
		ageExplanation();
		const text = e.status === 404 && /no such path/.test(e.message) ? 'This version of the module cannot explain requests.' : withoutCause(e.message);
		out.replaceChildren(element('p', { class: 'failure' }, text));
	}
	out.removeAttribute('aria-busy');
}

$('explain-again').addEventListener('click', () => explained && whileBusy(() => explain(explained.request, explained.asked)));

$('explain-form').addEventListener('submit', (event) => {
	event.preventDefault();
	const value = (name) => $('explain-form').elements[name].value.trim();
	whileBusy(() => {
		const request = { url: value('url'), method: value('method') || undefined, headers: readHeaders(value('headers')) };
		if (!request.url) throw new Error('Write a URL, such as https://example.com/login.');
		for (const name of ['client_ip', 'user']) if (value(name)) request[name] = value(name);
		const body = $('explain-body').value;
		if (body) request.body = body;
		return explain(request, instances[Number($('explain-where').value) || 0]);
	});
});
