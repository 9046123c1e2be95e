// Changes of a key. Each is confirmed in a dialog that names the key and the effect.

const changes = {
	ban: {
		button: 'Ban', title: 'Ban a key', method: 'PUT', path: 'ban', duration: 'For example 30m or 24h. Empty: as long as the bans of the zone', isHarmful: true,
		effect: 'All requests of the key are denied until the ban ends.', done: 'is banned',
		body: (d) => (d.duration ? { duration: d.duration } : undefined),
	},
	unban: {
		button: 'Unban', title: 'End a ban', method: 'DELETE', path: 'ban',
		effect: 'The ban ends now. Earlier bans and denials of the key no longer count. Charges stay.', done: 'is no longer banned',
	},
	override: {
		button: 'Override', title: 'Override the limits of a key', method: 'PUT', path: 'override', limits: true, duration: 'For example 1h. Empty: no end',
		effect: 'The key gets these limits instead of its own. Bans and concurrency still apply.', done: 'has new limits now',
		body: (d) => ({ ...(/^\s*unlimited\s*$/.test(d.limits) ? { unlimited: true } : { limits: d.limits.split('\n').map((l) => l.trim()).filter(Boolean) }), ...(d.duration ? { ttl: d.duration } : {}) }),
	},
	remove: {
		button: 'Remove', title: 'Remove an override', method: 'DELETE', path: 'override',
		effect: 'The key has the limits of its zone or plan again.', done: 'has its own limits again',
	},
	reset: {
		button: 'Reset', title: 'Reset a key', method: 'DELETE', path: 'keys', isHarmful: true,
		effect: 'All budgets of the key are full again, and its ban ends. Its override stays.', done: 'has been reset',
	},
};

// withoutJSON removes what the admin API says about bodies. The dialog writes them.
const withoutJSON = (text) => text.replace(/^the body: /, '').replace(/; write for example \{.*$/s, '');

let pending = null; // the change that the dialog asks about

// change opens the dialog. Without a key the dialog asks for one. Without a place it asks where.
function change(kind, zone, { key, place }) {
	const c = changes[kind];
	pending = { kind, zone, key };
	setText($('change-heading'), c.title);
	setText($('change-effect'), c.effect);
	setText($('change-error'), '');
	setText($('change-confirm'), c.button);
	$('change-confirm').classList.toggle('harmful', Boolean(c.isHarmful));
	$('change-key-line').replaceChildren('Zone ', element('strong', {}, zone), ...(key === undefined ? [] : [', key ', shownKey({ key })]));
	$('change-key-field').hidden = key !== undefined;
	$('change-limits-field').hidden = !c.limits;
	$('change-duration-field').hidden = !c.duration;
	setText($('change-duration-hint'), c.duration || '');
	for (const id of ['change-key', 'change-limits', 'change-duration']) $(id).value = '';
	$('change-key').required = key === undefined;
	$('change-limits').required = Boolean(c.limits);
	const places = [...stores(zone).keys()];
	$('change-where-field').hidden = places.length < 2;
	$('change-where').replaceChildren(element('option', { value: '' }, 'everywhere'), ...places.map((p) => element('option', { value: p }, p)));
	$('change-where').value = places.includes(place) ? place : '';
	$('change-confirm').disabled = false;
	$('change-dialog').showModal();
	if (key === undefined) $('change-key').focus();
	else if (c.limits) $('change-limits').focus();
	else if (c.duration) $('change-duration').focus();
	else $('change-confirm').focus();
}

$('change-form').addEventListener('submit', async (event) => {
	event.preventDefault();
	const asked = pending;
	const { kind, zone } = asked;
	const c = changes[kind];
	const key = asked.key === undefined ? encodeKey($('change-key').value) : asked.key;
	const body = c.body && c.body({ duration: $('change-duration').value.trim(), limits: $('change-limits').value });
	const where = [...stores(zone)].filter(([place]) => $('change-where').value === '' || $('change-where').value === place);
	$('change-confirm').disabled = true;
	setText($('change-error'), '');
	const results = await Promise.all(where.map(async ([place, instance]) => {
		try {
			await instance.call(c.method, zonePath(zone, `/${c.path}`) + keyQuery(key), body);
			return null;
		} catch (e) {
			const text = withoutJSON(e.message);
			return where.length > 1 ? `${place}: ${text}` : text;
		}
	}));
	const errors = results.filter(Boolean);
	if (where.length === 0) errors.push('No instance with this zone answers.');
	[...lists, ...listsOfAll].forEach((list) => list.refresh());
	ageExplanation('A key was changed');
	const isOpen = $('change-dialog').open && pending === asked; // it can ask about another change by now
	if (isOpen) $('change-confirm').disabled = false;
	if (errors.length) {
		if (isOpen) setText($('change-error'), errors.join('\n'));
		else message(`${c.title}: ${errors.join(' · ')}`, true);
		return;
	}
	if (isOpen) $('change-dialog').close();
	message(`Key ${plainKey({ key })} of zone ${zone} ${c.done}.`);
	if ($('key-dialog').open) lookAt(zone, key);
});

for (const button of document.querySelectorAll('dialog .close')) button.addEventListener('click', () => button.closest('dialog').close());
$('bans-new').addEventListener('click', () => change('ban', chosen, {}));
$('overrides-new').addEventListener('click', () => change('override', chosen, {}));

// A look at one key.

let look = null; // the latest look: the answers of earlier ones can come later

async function lookAt(zone, key) {
	const mine = (look = {});
	$('key-heading').replaceChildren('Key ', shownKey({ key }));
	const content = $('key-content');
	if (!$('key-dialog').open) {
		content.replaceChildren(element('p', { class: 'quiet' }, 'Loading…'));
		$('key-dialog').showModal();
	}
	const places = new Map([...stores(zone)].map(([place, instance]) => [instance, place]));
	let isBanned = false, isOverridden = false;
	const denials = [];
	const parts = await Promise.all(living().filter((i) => i.zones.has(zone)).map(async (instance) => { // each has its own denials
		const heading = places.size > 1 ? element('h3', {}, places.get(instance)) : null;
		try {
			const k = await instance.call('GET', zonePath(zone, '/keys') + keyQuery(key));
			denials.push(...(k.denials || []));
			if (!places.has(instance) && k.store !== 'local') return null; // another instance has these budgets
			isBanned ||= k.budgets.some((b) => b.ban && b.ban.banned);
			isOverridden ||= Boolean(k.override && k.override.from === 'runtime');
			return element('section', {}, heading,
				k.store === 'local' ? element('p', { class: 'failure' }, `Redis is failing. These are the local budgets of ${instance.name}.`) : null,
				k.override ? element('p', {}, element('span', { class: 'badge' }, 'override'), ' ', overrideText(k.override)) : null,
				...k.budgets.map((b) => element('div', {}, b.alternative ? element('h4', {}, 'Alternative ', element('code', {}, inCaddyfile(b.alternative))) : null, budgetList(b))));
		} catch (e) {
			return element('section', {}, heading, element('p', { class: 'failure' }, withoutCause(e.message)));
		}
	}));
	if (mine !== look) return;
	const list = variants(zone);
	const kinds = [...(list.some(canBan) ? ['ban', ...(isBanned ? ['unban'] : [])] : []), ...(list.some((z) => z.runtime_overrides) ? ['override', ...(isOverridden ? ['remove'] : [])] : []), 'reset'];
	const names = { remove: 'Remove override' };
	content.replaceChildren(element('p', { class: 'quiet' }, `Zone ${zone}`), ...recentlyLines(denials), ...parts.filter(Boolean),
		element('div', { class: 'buttons' }, ...kinds.map((kind) => element('button', { class: 'small', 'data-change': kind, onclick: () => change(kind, zone, { key }) }, names[kind] || changes[kind].button))));
}

$('find-key').addEventListener('submit', (event) => {
	event.preventDefault();
	lookAt(chosen, encodeKey($('find-key-text').value));
});
